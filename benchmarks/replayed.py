"""A candidate for GPUs: the local step of one client, or of several, as one CUDA graph of our own."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from fl_lightning import Algorithm, StackedExecutor
from fl_lightning.executors.local_step import LocalStep, weight_decay


class Replayed(StackedExecutor):
    """Local steps of plain SGD as one CUDA graph, captured at the first group of each size, replayed for every step.

    Arguments and results lie in tensors that stay where they are; a visit is copied in, its steps
    are replayed, and the last weights are copied out. Where there is no GPU the same function is
    called instead of replayed.

    Args:
        branches: A branch of the graph for each client, on a stream of its own; else one program of
            all under vmap.
        kernels: "compiled" for those that torch.compile makes of the step, "eager" for PyTorch's
            own.

    Raises:
        ValueError: By a call, for another optimizer, or clients whose steps differ in number, size
            or rate.
    """

    def __init__(self, *given: Any, branches: bool, kernels: str, **common: Any):
        super().__init__(*given, **common)
        self.branches, self.kernels = branches, kernels
        self._graphs: dict[tuple[Algorithm, int], _Graph] = {}

    @torch.no_grad()
    def _steps(
        self,
        step: LocalStep,
        common: Any,
        visits: Any,
        own: Any,
        states: Any,
        shared: Any,
        received: Any,
    ) -> Any:
        matrix, lrs = own["origin"], visits[0].lrs
        decay = weight_decay(step.algorithm.local([nn.Parameter(matrix)]))
        if decay is None or len({(*v.lrs, *v.batches.sizes) for v in visits}) > 1:
            raise ValueError("graphs are for plain SGD and clients with equal steps")
        public = {
            "common": common,
            "shared": shared,
            "lr": matrix.new_zeros(()),
            "decay": matrix.new_full((), decay),
        }
        arguments, key = (matrix, own, states, received, received), (step.algorithm, len(visits))
        if key not in self._graphs:
            descent = (
                step.compiled_descent
                if self.kernels == "compiled"
                else step.compiled_descent.function
            )
            self._graphs[key] = _Graph(
                descent, arguments, _batches(visits, 0), public, self.branches
            )
        graph = self._graphs[key]
        graph.load(arguments, public)
        for k, lr in enumerate(lrs):
            graph.step(_batches(visits, k), lr)
        matrix, states, buffers, losses = graph.results()
        return matrix, states, buffers, losses / len(lrs)


class _Graph:
    """A step of all clients, captured.

    Args:
        function: From the arguments of some clients, a row for each, their batches and `public` to
            weights, states, buffers and loss.
        arguments: Weights, facts, states, buffers and received buffers; like the next two, copied,
            not kept.
        batches: Inputs and targets of each client.
        public: What is the same for all clients.
        branches: Whether each client has a branch of its own.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        arguments: Any,
        batches: Any,
        public: Any,
        branches: bool,
    ):
        rows, self.function, self.public = len(batches), function, _copy(public)
        self.parts = [slice(i, i + 1) for i in range(rows)] if branches else [slice(0, rows)]
        # each part has tensors of its own: rows of one matrix lie at odd addresses, which fast kernels do not take
        self.kept = [
            _copy((*_rows(arguments, part), *_stacked(batches[part]))) for part in self.parts
        ]
        self.losses = [arguments[0].new_zeros(part.stop - part.start) for part in self.parts]
        self.replay = self._captured() if arguments[0].is_cuda else self._step_on(None)

    def _captured(self) -> Callable[[], None]:
        """The step as a graph, after warming up on the same streams: what a first call makes may not be captured."""
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
        # other threads write clients' rows meanwhile, which must not count as part of the capture
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
        weights, states, buffers, loss = self.function(*self.kept[i], self.public)
        _write((self.kept[i][0], *self.kept[i][2:4]), (weights, states, buffers))
        self.losses[i] += loss

    def load(self, arguments: Any, public: Any) -> None:
        """Begin the visits."""
        for part, kept, loss in zip(self.parts, self.kept, self.losses, strict=True):
            _write(kept[:-2], _rows(arguments, part))
            loss.zero_()
        _write(self.public, public)

    def step(self, batches: Any, lr: float) -> None:
        """Take a step, each client on its batch."""
        for part, kept in zip(self.parts, self.kept, strict=True):
            _write(kept[-2:], _stacked(batches[part]))
        self.public["lr"].fill_(lr)
        self.replay()

    def results(self) -> Any:
        """Weights, states, buffers and summed losses of all clients, as tensors of their own."""
        each = [
            (kept[0], *kept[2:4], loss) for kept, loss in zip(self.kept, self.losses, strict=True)
        ]
        return tree_map(lambda *rows: torch.cat(rows), *each)


def _batches(visits: Any, step: int) -> list[tuple[Tensor, Tensor]]:
    return [visit.batches[step] for visit in visits]


def _stacked(batches: Any) -> tuple[Tensor, ...]:
    """Inputs and targets with a row for each client; a view of the only one, whose channels stay innermost."""
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
        if (
            isinstance(target, Tensor) and target.data_ptr() != source.data_ptr()
        ):  # a state that a step leaves alone
            target.copy_(source)
