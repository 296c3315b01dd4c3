"""Several clients in parallel: rows of one matrix, one batched program."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby, zip_longest
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.optim import Optimizer
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from fl_lightning.core.algorithm import Algorithm, LocalFactory, Sent
from fl_lightning.core.device import to_device_async
from fl_lightning.core.network import unaliased
from fl_lightning.core.randomness import seeded_rng
from fl_lightning.core.substitution import substituted
from fl_lightning.core.term import States
from fl_lightning.core.vector import Layout
from fl_lightning.errors import UserError
from fl_lightning.executors.executor import Buffers, ClientResult, ClientTask, Executor, RoundInputs
from fl_lightning.executors.local_step import (
    LocalStep,
    SharedArgs,
    of_client,
    try_in_parallel,
    weight_decay,
)

K = TypeVar("K")

Begun = tuple[dict[str, Any], list[States], Buffers]
"""What clients begin their steps with, a row for each: their facts, states and buffers."""

Ended = tuple[Tensor, list[States], Buffers, Tensor]
"""What they end with: weights, states, buffers, and the means of what was observed."""


class StackedExecutor(Executor):
    """Trains up to `width` clients as one program under `vmap`.

    Each client is a row of a (clients, d) matrix and a Parameter of a local optimizer (see
    `optimizers_of`), which skips rows without a gradient, so clients may differ in length and
    learning rate. At each step, clients with equal batch size run together, so losses stay plain
    means and BatchNorm stays exact.

    Args:
        width: The number of clients that train in parallel.
        compiled: Compile steps of this batch size if all clients of the call take them; 0 is off.
            Compiling takes some seconds for each number of clients. Other steps run eagerly: those
            of short last batches, and those of a group smaller than the round's largest, such as
            its last one.
        **options: Arguments of `Executor`, as are the first two.

    Attributes:
        as_tensors: Whether the numbers of a round reach the steps as tensors, since a program would
            keep the numbers of its first round.
    """

    parallel = True

    def __init__(
        self,
        module: nn.Module,
        layout: Layout,
        *,
        width: int = 10,
        compiled: int = 0,
        **options: Any,
    ):
        super().__init__(module, layout, **options)
        if width < 1:
            raise UserError(f"width is the number of parallel clients, at least 1, not {width}")
        self.width, self.compiled, self.as_tensors = width, compiled, compiled > 0
        self._local_steps: dict[tuple[Algorithm, bool, bool], LocalStep] = {}

    @property
    def manner(self) -> str:
        """See `Executor`."""
        return f"{self.width} clients at a time as one program" if self.width > 1 else ""

    def local_step(self, algorithm: Algorithm, batched: bool, of_runs: bool = False) -> LocalStep:
        """The local step of a method, for clients of one run or several: see `LocalStep`."""
        key = algorithm, batched, of_runs
        if key not in self._local_steps:
            self._local_steps[key] = LocalStep(self, algorithm, batched)
        return self._local_steps[key]

    def try_model(self, x: Any, y: Any) -> None:
        """Raise a ModelError if the model cannot train on samples like these in this executor."""
        if self.width > 1 or self.compiled:  # one client at a time draws from its own seed
            try_in_parallel(self, x, y, batched=self.width > 1)

    def __call__(
        self, received: RoundInputs, tasks: Sequence[ClientTask]
    ) -> Iterable[ClientResult]:
        """Train the clients together."""
        return self.train([received] * len(tasks), tasks)

    def train(
        self, received: Sequence[RoundInputs], tasks: Sequence[ClientTask]
    ) -> Iterable[ClientResult]:
        """Train clients together, each with what its own run sends; yields one result a task.

        The methods of several runs are the same program: they differ in `coefficients` alone.
        """
        self.begin_training()
        method, anchor = received[0].algorithm, received[0].facts["anchor"]
        of_runs = any(inputs is not received[0] for inputs in received)
        shared, own = shared_args(received[0], self.as_tensors), [dict[str, Any]()] * len(tasks)
        if of_runs:
            shared, own = of_several(received)
        client_facts = stack([{**facts, **v.facts} for v, facts in zip(tasks, own, strict=True)])
        states = stack([v.states for v in tasks])

        def start(facts: dict[str, Any], states: list[States]) -> tuple[Tensor, list[States]]:
            algorithm, facts, server_states = of_client(method, facts, shared)
            return algorithm.start(facts["anchor"], facts, states, server_states)

        def send(
            progress: Tensor, w: Tensor, facts: dict[str, Any], states: list[States]
        ) -> tuple[Sent, list[Any], list[States]]:
            algorithm, facts, server_states = of_client(method, facts, shared)
            return algorithm.send(progress, w, facts, states, server_states)

        with seeded_rng(tasks[0].seed, anchor.device), substituted(batched=True):
            origin, states = vmap(start)(client_facts, states)
            client_facts["origin"] = origin
            both = zip(received, tasks, strict=True)
            buffers = stack(
                [{**r.buffers, **v.buffers, **self.dropout_key(v.seed)} for r, v in both]
            )
            step = self.local_step(method, batched=of_runs or self.width > 1, of_runs=of_runs)
            full = all(len(mine) >= run.group for run, mine in by_run(received, tasks))
            begun = client_facts, states, buffers
            w, states, after, means = self._steps(step, tasks, begun, shared, full)
            progress = w - origin
            returned = vmap(send)(progress, w, client_facts, states)
        kept = {name: after[name] for name in received[0].buffers}
        results = progress, *returned, kept, means[:, 0], origin, means[:, 1:]
        yield from (ClientResult(*row) for row in unstack(results))

    @torch.no_grad()
    def _steps(
        self,
        local_step: LocalStep,
        tasks: Sequence[ClientTask],
        begun: Begun,
        shared: SharedArgs,
        full: bool,
    ) -> Ended:
        client_facts, states, received = begun
        matrix, buffers = client_facts["origin"].clone(), received
        rows = [nn.Parameter(row) for row in matrix]
        optimizers = optimizers_of(local_step.algorithm.local, rows)
        decay, total = weight_decay(optimizers[0]), matrix.new_zeros(len(tasks), 0)
        table = list(zip_longest(*(v.lrs for v in tasks), fillvalue=0.0))
        lrs = to_device_async(torch.tensor(table, dtype=matrix.dtype), matrix.device)
        for step in range(len(table)):
            for together in _groups(tasks, step):
                batch = [tasks[i].batches[step] for i in together]
                x, y = stack([x for x, _ in batch]), stack([y for _, y in batch])
                of = _Rows(together, len(tasks), matrix.device)
                clients = (matrix, client_facts, states, buffers, received)
                arguments = *map(of.take, clients), x, y
                size = tasks[together[0]].batches.sizes[step]
                compiled = full and len(together) == len(tasks) and size == self.compiled
                if compiled and decay is not None:
                    sgd = shared | {"decay": matrix.new_full((), decay)}
                    descent = local_step.compiled_descent(lrs[step].clone(), *arguments, sgd)
                    matrix, moved, after, observed = descent
                    for row, values in zip(rows, matrix, strict=True):
                        row.data = values
                else:
                    direction = local_step.compiled_direction if compiled else local_step.direction
                    g, moved, after, observed = direction(*arguments, shared)
                    moved = [{k: unaliased(s, matrix) for k, s in term.items()} for term in moved]
                    kept = (state for term in moved for state in term.values())
                    g = unaliased(g, matrix, *kept)  # some optimizers change a gradient in place
                    stepped = [(rows[i], optimizers[i], table[step][i]) for i in together]
                    step_rows(stepped, g)
                states, buffers = of.put(states, moved), of.put(buffers, after)
                if not total.numel():  # a loss may have more digits than the model
                    total = observed.new_zeros(len(tasks), observed.shape[1])
                total = of.put(total, of.take(total) + observed)
        steps = to_device_async(torch.tensor([len(v.lrs) for v in tasks]), total.device)
        return matrix, states, buffers, total / steps[:, None]


def optimizers_of(local: LocalFactory, rows: Sequence[nn.Parameter]) -> list[Optimizer]:
    """The optimizer of each row: one for all if it is torch's, which step each Parameter alone.

    Another one may look at all that it has, as by a norm, or count its steps.
    """
    one = local(rows)
    if type(one).__module__.startswith("torch.optim."):
        return [one] * len(rows)
    return [local([row]) for row in rows]


def step_rows(rows: Sequence[tuple[nn.Parameter, Optimizer, float]], directions: Tensor) -> None:
    """Step rows, each with its optimizer and learning rate; together where these are equal."""
    for optimizer, lr in dict.fromkeys((of, lr) for _, of, lr in rows):
        for (row, *own), g in zip(rows, directions, strict=True):
            row.grad = g if own == [optimizer, lr] else None
        for group in optimizer.param_groups:
            group["lr"] = lr
        optimizer.step()
    for row, *_ in rows:
        row.grad = None


class _Rows:
    """Some rows of everything that is stacked along clients; all of them without a copy."""

    def __init__(self, rows: list[int], count: int, device: torch.device):
        self.index = None if len(rows) == count else to_device_async(torch.tensor(rows), device)

    def take(self, tree: Any) -> Any:
        return tree if self.index is None else tree_map(lambda t: t[self.index], tree)

    def put(self, tree: Any, new: Any) -> Any:
        if self.index is None:
            return new
        return tree_map(lambda t, n: t.index_copy(0, self.index, n), tree, new)


def shared_args(inputs: RoundInputs, as_tensors: bool) -> SharedArgs:
    """What the clients of one run share, with 0-dim tensors in the place of numbers if asked."""
    like = inputs.facts["anchor"]

    def given(values: Mapping[K, Any]) -> dict[K, Any]:
        return {
            name: like.new_full((), x) if as_tensors and isinstance(x, float | int) else x
            for name, x in values.items()
        }

    facts, coefficients = given(inputs.facts), given(inputs.coefficients)
    return {"round_facts": facts, "server_states": inputs.states, "coefficients": coefficients}


def of_several(received: Sequence[RoundInputs]) -> tuple[SharedArgs, list[dict[str, Any]]]:
    """The layout, which clients of several runs share, and tensors for each client."""
    shared, own = dict[str, Any](), dict[int, dict[str, Any]]()
    for inputs in {id(inputs): inputs for inputs in received}.values():
        given = shared_args(inputs, as_tensors=True)
        facts = given.pop("round_facts")
        shared["round_facts"] = {"layout": facts.pop("layout")}
        own[id(inputs)] = {**facts, **given}
    return shared, [own[id(inputs)] for inputs in received]


def by_run(
    received: Sequence[RoundInputs], tasks: Sequence[ClientTask]
) -> Iterator[tuple[RoundInputs, list[ClientTask]]]:
    """What each run sends, with its clients, which stand together."""
    both = zip(received, tasks, strict=True)
    for _, of_run in groupby(both, key=lambda pair: id(pair[0])):
        pairs = [*of_run]
        yield pairs[0][0], [task for _, task in pairs]


def _groups(tasks: Sequence[ClientTask], step: int) -> Iterable[list[int]]:
    """Clients that can take this step together, as their batches are equally large."""
    groups: dict[int, list[int]] = {}
    for i, task in enumerate(tasks):
        if step < len(task.lrs):
            groups.setdefault(task.batches.sizes[step], []).append(i)
    return groups.values()


def stack(trees: Sequence[Any]) -> Any:
    """The trees' tensors, a row for each; a view if there is only one tree."""
    if len(trees) == 1:
        return tree_map(lambda t: t[None], trees[0])
    return tree_map(lambda *tensors: torch.stack(tensors), *trees)


def unstack(tree: Any) -> Iterator[Any]:
    """A tree for each row of the tree's tensors."""
    leaves, structure = tree_flatten(tree)
    for row in zip(*(leaf.unbind() for leaf in leaves), strict=True):
        yield tree_unflatten(row, structure)
