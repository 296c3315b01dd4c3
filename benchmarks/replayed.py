"""A candidate for GPUs: the local step of one or several clients as one CUDA graph."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from fl_lightning import Algorithm, StackedExecutor
from fl_lightning.executors.local_step import LocalStep, weight_decay


class Replayed(StackedExecutor):
    """Local steps of plain SGD as a CUDA graph, captured once for each group size, then replayed.

    Arguments and results lie in fixed tensors: a visit is copied in, its steps are replayed, and
    the last weights are copied out. Without a GPU the same function is called instead.

    Args:
        *given: Arguments of `StackedExecutor`.
        branches: A branch of the graph for each client, on its own stream; else one program of all
            clients under vmap.
        kernels: "compiled" for those of torch.compile, "eager" for PyTorch's own.
        **options: Further arguments of `StackedExecutor`.

    Raises:
        ValueError: By a call, for an optimizer other than plain SGD, or clients whose steps differ
            in number, size or rate.
    """

    def __init__(self, *given: Any, branches: bool, kernels: str, **options: Any):
        super().__init__(*given, **options)
        self.branches, self.kernels = branches, kernels
        self._graphs: dict[tuple[Algorithm, int], _Graph] = {}

    @torch.no_grad()
    def _steps(
        self,
        local_step: LocalStep,
        visits: Any,
        client_facts: Any,
        states: Any,
        received: Any,
        shared: Any,
    ) -> Any:
        matrix, lrs = client_facts["origin"], visits[0].lrs
        decay = weight_decay(local_step.algorithm.local([nn.Parameter(matrix)]))
        if decay is None or len({(*v.lrs, *v.batches.sizes) for v in visits}) > 1:
            raise ValueError("graphs are for plain SGD and clients with equal steps")
        shared_args = shared | {"decay": matrix.new_full((), decay)}
        rates = matrix.new_zeros(len(visits))
        arguments = rates, matrix, client_facts, states, received, received
        key = local_step.algorithm, len(visits)
        if key not in self._graphs:
            program = local_step.compiled_descent
            descent = program if self.kernels == "compiled" else program.function
            self._graphs[key] = _Graph(
                descent, arguments, _batches(visits, 0), shared_args, self.branches
            )
        graph = self._graphs[key]
        graph.load(arguments, shared_args)
        for k, lr in enumerate(lrs):
            graph.step(_batches(visits, k), lr)
        matrix, states, buffers, losses = graph.results()
        return matrix, states, buffers, losses / len(lrs)


class _Graph:
    """A step of all clients, captured.

    Args:
        function: From the arguments of some clients, a row for each, their batches and
            `shared_args` to weights, states, buffers and loss.
        arguments: Learning rates, weights, facts, states, buffers and received buffers; like the
            next two, copied.
        batches: Inputs and targets of each client.
        shared_args: Arguments that are the same for all clients.
        branches: Whether each client has its own branch.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        arguments: Any,
        batches: Any,
        shared_args: Any,
        branches: bool,
    ):
        rows, self.function, self.shared_args = len(batches), function, _copy(shared_args)
        self.parts = [slice(i, i + 1) for i in range(rows)] if branches else [slice(0, rows)]
        # copies: rows of one matrix lie at odd addresses, which fast kernels do not take
        self.kept = [
            _copy((*_rows(arguments, part), *_stacked(batches[part]))) for part in self.parts
        ]
        self.losses = [arguments[0].new_zeros(part.stop - part.start) for part in self.parts]
        self.replay = self._captured() if arguments[0].is_cuda else self._step_on(None)

    def _captured(self) -> Callable[[], None]:
        """The step as a graph, after a warm-up on its streams: a first call allocates."""
        step = self._step_on(
            [torch.cuda.Stream() for _ in self.parts] if len(self.parts) > 1 else None
        )
        trunk = torch.cuda.Stream()
        trunk.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(trunk):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(trunk)
        graph = torch.cuda.CUDAGraph()
        # thread_local: other threads write clients' rows meanwhile
        with torch.cuda.graph(graph, stream=trunk, capture_error_mode="thread_local"):
            step()
        replay: Callable[[], None] = graph.replay
        return replay

    def _step_on(self, streams: Sequence[torch.cuda.Stream] | None) -> Callable[[], None]:
        """One step of all parts, forked from the current stream and joined with it again."""

        def step() -> None:
            for i in range(len(self.parts)):
                if streams:
                    streams[i].wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(streams[i]) if streams else nullcontext():
                    self._advance(i)
            for stream in streams or ():
                torch.cuda.current_stream().wait_stream(stream)

        return step

    def _advance(self, i: int) -> None:
        """One step of the clients of a part; what moves is written over."""
        weights, states, buffers, loss = self.function(*self.kept[i], self.shared_args)
        _write((self.kept[i][1], *self.kept[i][3:5]), (weights, states, buffers))
        self.losses[i] += loss

    def load(self, arguments: Any, shared_args: Any) -> None:
        """Begin the visits."""
        for part, kept, loss in zip(self.parts, self.kept, self.losses, strict=True):
            _write(kept[:-2], _rows(arguments, part))
            loss.zero_()
        _write(self.shared_args, shared_args)

    def step(self, batches: Any, lr: float) -> None:
        """Take a step, each client on its batch."""
        for part, kept in zip(self.parts, self.kept, strict=True):
            _write(kept[-2:], _stacked(batches[part]))
            kept[0].fill_(lr)
        self.replay()

    def results(self) -> Any:
        """Weights, states, buffers and summed losses of all clients, as tensors of their own."""
        each = [
            (kept[1], *kept[3:5], loss) for kept, loss in zip(self.kept, self.losses, strict=True)
        ]
        return tree_map(lambda *rows: torch.cat(rows), *each)


def _batches(visits: Any, step: int) -> list[tuple[Tensor, Tensor]]:
    return [visit.batches[step] for visit in visits]


def _stacked(batches: Any) -> tuple[Tensor, ...]:
    """Inputs and targets with a row for each client; a view if there is one client."""
    return tuple(
        torch.stack(each) if len(batches) > 1 else each[0][None]
        for each in zip(*batches, strict=True)
    )


def _rows(tree: Any, part: slice) -> Any:
    return tree_map(lambda leaf: leaf[part], tree)


def _copy(tree: Any) -> Any:
    return tree_map(lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf, tree)


def _write(kept: Any, new: Any) -> None:
    for target, source in zip(tree_leaves(kept), tree_leaves(new), strict=True):
        if isinstance(target, Tensor) and target.data_ptr() != source.data_ptr():
            target.copy_(source)
