"""Dropout masks that are a function of a key: they depend on the client, not on the executor.

PyTorch's dropout draws from a global generator: its masks depend on which clients trained before on
this rank, and `vmap` refuses it. Here a mask is a hash of (key, position). The key is a tensor,
made at the start of a visit from (seed, round, client); `vmap` handles it like a buffer. No key
changes: a pass that draws leaves a new one.
"""

from collections.abc import Sequence
from functools import cached_property
from threading import get_ident
from typing import Self

import torch
from torch import Tensor

from fl_lightning.core.randomness import LCG, next_key, uniform_bits

KEY = "<dropout>"
"""The name of the key among a visit's buffers; no buffer of a module is named so."""

_SATURATION = -1.7580993408473766  # of SELU: what alpha dropout makes of a dropped element


def new_key(seed: int) -> Tensor:
    """The key of a visit, (2,) int64: the number before its first, and the step between draws."""
    return torch.tensor([seed, 1])


class DropoutMasks:
    """The dropout masks of one forward pass; a context, in which `substitution` draws from them.

    Attributes:
        key: That of the next pass (see `new_key`): another one as soon as this pass draws.
    """

    def __init__(self, key: Tensor):
        self.key, self._count, self._thread = key, 0, get_ident()

    def __enter__(self) -> Self:
        _running.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        _running.pop()

    def drop(self, x: Tensor, p: float, shape: Sequence[int], alpha: bool = False) -> Tensor:
        """Drop elements of `x` with probability `p` and scale up the others.

        The mask's shape broadcasts to that of `x`. With `alpha` mean and variance stay, as in
        `torch.nn.AlphaDropout`.
        """
        index, self._count = self._count, self._count + 1
        if p == 0:
            return x
        if p == 1:
            return torch.zeros_like(x)
        first, step = self._keys
        key = first + index * step if index else first
        bits = uniform_bits(key, torch.Size(shape).numel())
        kept = (bits >= round(p * 2**31)).view(shape)
        if not alpha:
            return x * kept / (1 - p)
        scale = ((1 - p) * (1 + p * _SATURATION**2)) ** -0.5
        return scale * (torch.where(kept, x, _SATURATION) - p * _SATURATION)

    @cached_property
    def _keys(self) -> tuple[Tensor, Tensor]:
        """The key of this pass's first draw, and the step to that of the next draw."""
        first, step = self.key.unbind()
        first, step = next_key(first), step * LCG[0]
        self.key = torch.stack([first, step])
        return first, step


_running: list[DropoutMasks] = []


def running_masks() -> DropoutMasks | None:
    """Those of the innermost pass that runs; None in other threads."""
    masks = _running[-1] if _running else None
    return masks if masks and masks._thread == get_ident() else None
