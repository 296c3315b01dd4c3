"""Several clients at once: rows of one matrix, one batched program."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import grad_and_value, vmap
from torch.utils._pytree import tree_map

from fl_lightning.algorithm import Algorithm, Facts
from fl_lightning.executors.program import Program
from fl_lightning.executors.visit import Buffers, Executor, Outcome, Visit, Weighted, drawing_from
from fl_lightning.oracle import Evaluations, ModelError, Pass, Question, objective
from fl_lightning.term import States, TermError
from fl_lightning.vector import Layout


class Stacked(Executor):
    """Trains up to `width` clients as one program under `vmap`. See `Executor` for the other arguments.

    Each client is a row of a (clients, d) matrix and an ordinary Parameter of one ordinary local optimizer. Rows
    without a gradient are skipped by `torch.optim`, so clients of unequal length are exact; at each step, clients with
    equal batch size and learning rate run together, so losses stay plain means and BatchNorm stays exact.

    Args:
        width: How many clients train at once.
        compiled: The batch size whose steps are compiled where `width` clients take them together, which costs some
            seconds once. Other steps, such as those of short last batches, run as they are. 0 compiles nothing.
        mode: Of `torch.compile`; "reduce-overhead" replays CUDA graphs.
    """

    def __init__(
        self,
        module: nn.Module,
        layout: Layout,
        *,
        width: int = 10,
        compiled: int = 0,
        mode: str = "default",
        **common: Any,
    ):
        super().__init__(module, layout, **common)
        if width < 1:
            raise ValueError(f"at least one client trains at once, but width is {width}")
        self.width, self.compiled, self.mode = width, compiled, mode
        self._programs: dict[Algorithm, Program] = {}

    def __call__(
        self, algorithm: Algorithm, common: Facts, visits: Sequence[Visit], shared: Sequence[States], buffers: Buffers
    ) -> Iterable[Outcome]:
        """Train the clients together."""
        self.module.train()
        if self.compiled:  # or a program would hold the numbers of the round in which it was compiled
            common = {name: _moving(fact, common["anchor"]) for name, fact in common.items()}
        own, states = _stack([dict(v.facts) for v in visits]), _stack([v.states for v in visits])

        def start(own: dict[str, Tensor], states: list[States]) -> tuple[Tensor, list[States]]:
            return algorithm.start(common["anchor"], {**common, **own}, states, shared)

        def report(w: Tensor, own: dict[str, Tensor], states: list[States]) -> tuple[list[Any], list[States]]:
            return algorithm.report(w, {**common, **own}, states, shared)

        origin, states = vmap(start)(own, states)
        own["origin"] = origin
        received = _stack([{**buffers, **self.dropout_keys(v.seed)} for v in visits])
        alone = drawing_from(visits[0].seed, origin.device) if len(visits) == 1 else nullcontext()
        with alone:
            w, states, after, losses = self._steps(algorithm, common, visits, own, states, shared, received)
        message, states = vmap(report)(w, own, states)
        for i in range(len(visits)):
            kept = {name: b[i] for name, b in after.items() if name not in self.keys}
            yield Outcome(w[i] - origin[i], _row(message, i), _row(states, i), kept, losses[i])

    def _steps(
        self,
        algorithm: Algorithm,
        common: Facts,
        visits: Sequence[Visit],
        own: dict[str, Tensor],
        states: list[States],
        shared: Sequence[States],
        received: Buffers,
    ) -> tuple[Tensor, list[States], Buffers, Tensor]:
        matrix, buffers = own["origin"].clone(), received
        rows = [nn.Parameter(row) for row in matrix]
        optimizer = algorithm.local(rows)
        losses = matrix.new_zeros(len(visits))
        for step in range(max(len(v.lrs) for v in visits)):
            for lr, together in _groups(visits, step):
                batch = [visits[i].batches[step] for i in together]
                x, y = _stack([x for x, _ in batch]), _stack([y for _, y in batch])
                of = _Rows(together, len(visits), matrix.device)
                direction = self._direction(algorithm, compiled=len(y) == self.width and len(y[0]) == self.compiled)
                with torch.no_grad():
                    arguments = (of.take(t) for t in (matrix, own, states, buffers, received))
                    directions, moved, after, loss = direction(*arguments, x, y, common, shared)
                    states, buffers = of.put(states, moved), of.put(buffers, after)
                    losses = of.put(losses, of.take(losses) + loss)
                for i, g in zip(together, directions, strict=True):
                    rows[i].grad = g
                for group in optimizer.param_groups:
                    group["lr"] = lr
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
        return matrix, states, buffers, losses / losses.new_tensor([max(1, len(v.lrs)) for v in visits])

    def _direction(self, algorithm: Algorithm, compiled: bool) -> Callable[..., Any]:
        """The directions of several clients at one step."""
        if not compiled:
            return _of_each(self._direction_of_one(algorithm))
        if algorithm not in self._programs:
            self._programs[algorithm] = Program(_of_each(self._direction_of_one(algorithm)), self.mode)
        return self._programs[algorithm]

    def _direction_of_one(self, algorithm: Algorithm) -> Callable[..., Any]:
        """One client's direction at one step."""

        def one(
            w: Tensor,
            own: dict[str, Tensor],
            states: list[States],
            buffers: Buffers,
            received: Buffers,
            x: Tensor,
            y: Tensor,
            common: Facts,
            shared: Sequence[States],
        ) -> tuple[Tensor, list[States], Buffers, Tensor]:
            first: list[tuple[Buffers, Tensor]] = []

            def evaluate(w: Tensor, question: Question) -> Tensor:
                def value(parts: list[Tensor]) -> tuple[Tensor, tuple[Buffers, Tensor]]:
                    moved = {name: b.clone() for name, b in buffers.items()}  # inside grad, or BatchNorm may not write
                    weights = dict(zip(self.layout.names, parts, strict=True))
                    network = Weighted(self.module, self.layout, received, weights, moved)
                    with self.autocast():
                        b = Pass(network, *question.batch(x, y), question.taps)
                        total, task = objective(b, (self.task, *question.losses))
                    return total, (moved, task)

                with _blame_model():
                    gradients, (_, aside) = grad_and_value(value, has_aux=True)(self.layout.split(w))
                first.append(aside)
                return self.layout.flatten(gradients)

            g, states = algorithm.gradient(Evaluations(evaluate), w, {**common, **own}, states, shared)
            after, task = first[0] if first else (buffers, w.new_full((), torch.nan))
            return g, states, after, task

        return one


class _Rows:
    """Some rows of everything that is stacked along clients; all of them without a copy."""

    def __init__(self, rows: list[int], count: int, device: torch.device):
        self.index = None if len(rows) == count else torch.tensor(rows, device=device)

    def take(self, tree: Any) -> Any:
        return tree if self.index is None else tree_map(lambda t: t[self.index], tree)

    def put(self, tree: Any, new: Any) -> Any:
        return new if self.index is None else tree_map(lambda t, n: t.index_copy(0, self.index, n), tree, new)


def _of_each(one: Callable[..., Any]) -> Callable[..., Any]:
    """From a function of one client to that of several: all arguments but the last two have a row for each."""

    def each(*arguments: Any) -> Any:
        *own, common, shared = arguments
        if len(own[0]) > 1:
            return vmap(one, in_dims=(*[0] * len(own), None, None), randomness="error")(*arguments)
        return tree_map(lambda t: t[None], one(*_row(own, 0), common, shared))

    return each


def _moving(fact: Any, like: Tensor) -> Any:
    return like.new_tensor(fact) if isinstance(fact, float | int) else fact


def _groups(visits: Sequence[Visit], step: int) -> Iterator[tuple[float, list[int]]]:
    """Clients that can take this step together: equal batch size and learning rate."""
    groups: dict[tuple[int, float], list[int]] = {}
    for i, visit in enumerate(visits):
        if step < len(visit.lrs):
            groups.setdefault((visit.batches.sizes[step], visit.lrs[step]), []).append(i)
    for (_, lr), together in groups.items():
        yield lr, together


def _stack(trees: Sequence[Any]) -> Any:
    """The trees' tensors, a row for each; a view of the only one."""
    return tree_map(lambda *tensors: torch.stack(tensors) if len(trees) > 1 else tensors[0][None], *trees)


def _row(tree: Any, i: int) -> Any:
    return tree_map(lambda t: t[i], tree)


@contextmanager
def _blame_model() -> Iterator[None]:
    try:
        yield
    except (TermError, ModelError):
        raise
    except RuntimeError as error:
        if "vmap" not in str(error):
            raise
        raise ModelError(
            f"this model or its loss cannot run for several clients at once: {str(error).splitlines()[0]} "
            "Train it with the sequential executor. (Dropout is fine as nn.Dropout; branches on values are not.)"
        ) from error
