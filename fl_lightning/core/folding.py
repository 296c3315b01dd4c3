"""Clients of a stack as further channels or groups of one call, for functions with `vmap` rules."""

from torch import Tensor
from torch._C._functorch import TransformType, get_interpreter_stack


def is_stacked() -> bool:
    """Whether `vmap` runs: a function sees one of several clients."""
    return any(each.key() == TransformType.Vmap for each in get_interpreter_stack() or [])


def folded(t: Tensor, clients: int, dim: int | None, at: int) -> Tensor:
    """The tensor of all clients, which lie in `dim`, or are equal, as part of dimension `at`.

    Each keeps its own weights so. Grouped convolutions leave their results in this layout, as
    further channels, so that nothing is copied there.
    """
    if dim is None:
        t = t.unsqueeze(at).expand(*t.shape[:at], clients, *t.shape[at:])
    else:
        t = t.movedim(dim, at)
    return t.flatten(at, at + 1)
