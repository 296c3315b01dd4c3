"""A local step in static tensors: on a GPU a CUDA graph, elsewhere calls of the same function."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from fl_lightning.core.device import to_device_async
from fl_lightning.core.vector import copy
from fl_lightning.executors.executor import ClientTask
from fl_lightning.executors.local_step import LocalStep, SharedArgs, refused_draws, weight_decay
from fl_lightning.executors.stacked import Begun, Ended, optimizers_of, stack, step_rows

Call = Callable[[], None]


def captured(step: Call, stream: torch.cuda.Stream | None, pool: Any) -> Call:
    """The step as a CUDA graph, captured on a stream; without a stream the step itself."""
    if stream is None:
        return step
    graph = torch.cuda.CUDAGraph()
    # thread_local: other threads write clients' states meanwhile
    with torch.cuda.graph(graph, pool, stream, capture_error_mode="thread_local"):
        step()
    return graph.replay


class ReplayedStep:
    """The local step of some clients, whose arguments and results lie in static tensors.

    The first step of a batch size runs eagerly, which warms it up. The second one is captured, and
    replayed from then on. An optimizer other than plain SGD steps after each replay.

    Args:
        local_step: The step.
        shared: The arguments that all clients share: static tensors, which the caller writes.
        begun: What any visit begins with.

    Attributes:
        stream: Where the steps run; None on a CPU.
        count: The number of steps of the visits that were begun.
    """

    @torch.no_grad()
    def __init__(self, local_step: LocalStep, shared: SharedArgs, begun: Begun):
        w = begun[0]["origin"]
        self._algorithm, self._compiled = local_step.algorithm, local_step.executor.compiled
        decay = weight_decay(self._algorithm.local([nn.Parameter(w[0])]))
        self._descends = decay is not None
        self._shared = {**shared, "decay": w.new_full((), decay or 0.0)}
        self._eager, self._fast = (
            (local_step.descent, local_step.compiled_descent)
            if self._descends
            else (local_step.direction, local_step.compiled_direction)
        )
        self._kept = copied((w, *begun, begun[2]))  # the buffers again, as received
        self._lrs = w.new_zeros(len(w))
        self._moved = self._kept[0] if self._descends else torch.zeros_like(self._kept[0])
        self._total: Tensor | None = None
        self._batches: dict[Any, Any] = {}
        self._replays: dict[Any, Call] = {}
        self.stream = torch.cuda.Stream(w.device) if w.is_cuda else None
        self._pool = torch.cuda.graph_pool_handle() if w.is_cuda else None

    @torch.no_grad()
    def begin(self, tasks: Sequence[ClientTask], begun: Begun) -> None:
        """Begin the visits of as many clients, with equal steps."""
        w = begun[0]["origin"]
        write(self._kept, (w, *begun, begun[2]))
        if self._total is not None:
            self._total.zero_()
        self._tasks, self.count = tasks, len(tasks[0].lrs)
        rates = torch.tensor([task.lrs for task in tasks], dtype=w.dtype).T.contiguous()
        self._rates = to_device_async(rates, w.device)
        self._rows = [nn.Parameter(row) for row in self._kept[0]]
        self._optimizers = optimizers_of(self._algorithm.local, self._rows)
        if self.stream:
            self.stream.wait_stream(torch.cuda.current_stream())

    @torch.no_grad()
    def take(self, k: int) -> None:
        """Take the k-th step of the visits, counted from 0."""
        # without a stream, CUDA's context asks a Mac's GPU for a number that it has not
        with torch.cuda.stream(self.stream) if self.stream else nullcontext():
            batches = [task.batches[k] for task in self._tasks]
            self._lrs.copy_(self._rates[k])
            self._step_on(batches, self._tasks[0].batches.sizes[k])()
            if not self._descends:
                rates = [task.lrs[k] for task in self._tasks]
                rows = [*zip(self._rows, self._optimizers, rates, strict=True)]
                step_rows(rows, self._moved.clone())  # which it may keep or change

    @torch.no_grad()
    def end(self) -> Ended:
        """End the visits."""
        if self.stream:
            torch.cuda.current_stream().wait_stream(self.stream)
        assert self._total is not None  # a visit has a step
        w, _, states, buffers, _ = self._kept
        return *copied((w, states, buffers)), self._total / self.count

    def _step_on(self, batches: Sequence[Any], size: int) -> Call:
        """The step on these batches, of `size` samples each."""
        key = tuple((t.shape, t.dtype) for t in tree_leaves(batches[0]))
        if key not in self._batches:
            self._batches[key] = copied(stack(batches))
            return partial(self._first, self._batches[key], size)
        static = self._batches[key]
        tree_map(lambda kept, *each: torch.stack(each, out=kept), static, *batches)
        if key not in self._replays:
            step = partial(self._advance, static, size)
            self._replays[key] = captured(step, self.stream, self._pool)
        return self._replays[key]

    def _first(self, batch: tuple[Any, Any], size: int) -> None:
        """A step that refuses what no graph can repeat."""
        device, compiled = self._lrs.device, size == self._compiled
        with refused_draws(device), refused_waits(device, compiled):
            self._advance(batch, size)

    def _advance(self, batch: tuple[Any, Any], size: int) -> None:
        """One step: what it moves is written over."""
        step, rates = self._fast if size == self._compiled else self._eager, self._lrs
        before = (rates, *self._kept) if self._descends else self._kept
        moved, states, buffers, observed = step(*before, *batch, self._shared)
        write((self._moved, *self._kept[2:4]), (moved, states, buffers))
        if self._total is None:
            self._total = torch.zeros_like(observed)
        self._total += observed


@contextmanager
def refused_waits(device: torch.device, compiled: bool) -> Iterator[None]:
    """Raise a RuntimeError where code waits for a GPU; a failed capture would keep its memory.

    A compiler, which may measure its kernels, may wait.
    """
    if device.type != "cuda" or compiled:
        yield
        return
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


def copied(tree: Any) -> Any:
    """The tree with tensors of its own."""
    return tree_map(lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf, tree)


def write(places: Any, values: Any) -> None:
    """Copy tensors into their places. A value may lie in another's place, as of a kept weight."""
    pairs = [
        (place, value)
        for place, value in zip(tree_leaves(places), tree_leaves(values), strict=True)
        if isinstance(place, Tensor) and not _is_same(place, value)
    ]
    written = {place.untyped_storage().data_ptr() for place, _ in pairs}
    own = [v.clone() if v.untyped_storage().data_ptr() in written else v for _, v in pairs]
    copy([place for place, _ in pairs], own)


def _is_same(place: Tensor, value: Tensor) -> bool:
    """Whether a value lies in its place already."""
    there = place.data_ptr() == value.data_ptr() and place.shape == value.shape
    return there and place.stride() == value.stride()
