"""CUDA graphs on a CPU: a step's operations, recorded once and repeated on the same tensors.

Like a graph, a recording keeps every Python number of its step, and where each tensor lies.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

WAITING = {
    torch.ops.aten._local_scalar_dense.default,
    torch.ops.aten.is_nonzero.default,
    torch.ops.aten.nonzero.default,
}
"""Operations that wait for a GPU."""


class Recording(TorchDispatchMode):
    """Records the operations in its context, all of which it runs."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[tuple[Callable[..., Any], Any, Any, Any]] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None):
        if function in WAITING:
            raise RuntimeError("operation not permitted when stream is capturing")
        out = function(*args, **(kwargs or {}))
        self.operations.append((function, args, kwargs or {}, out))
        return out

    def replay(self) -> None:
        """Run the operations again, each with its results where they lay."""
        for function, args, kwargs, out in self.operations:
            given = {_memory(t) for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
            again = function(*args, **kwargs)
            for place, value in zip(tree_leaves(out), tree_leaves(again), strict=True):
                if isinstance(place, Tensor) and _memory(place) not in given:
                    place.copy_(value)


def recorded(step: Callable[[], None], *_: Any) -> Callable[[], None]:
    """In the place of `captured`, whose step does not run before the first replay."""
    recording = Recording()
    with recording:
        step()
    has_run = [True]

    def replay() -> None:
        if has_run:
            has_run.clear()
        else:
            recording.replay()

    return replay


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
