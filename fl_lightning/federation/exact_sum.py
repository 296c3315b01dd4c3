"""Sums over clients and ranks: plain ones, and exact ones that no order of the addends changes."""

from math import ceil, inf, log2
from typing import Protocol

import torch
from torch import Tensor


class Sum(Protocol):
    """How a vector is added up: in one or more limbs, vectors of as many numbers whose sum is the value.

    Limbs of several ranks add up number by number. A sum is made as `Sum(dtype, addends)` for
    addends of `dtype`, of which there are at most so many, on all ranks, with weights that are 1 on
    average.

    Attributes:
        limbs: How many limbs there are.
        dtype: Their number type.
        limit: Addends must lie below in size.
    """

    limbs: int
    dtype: torch.dtype
    limit: float

    def __init__(self, dtype: torch.dtype, addends: int): ...

    def add(self, limbs: Tensor, x: Tensor, weight: float) -> None:
        """Add `weight * x`, (n,), to the limbs, (limbs, n)."""

    def value(self, limbs: Tensor) -> Tensor:
        """What the limbs stand for, (n,)."""


class PlainSum(Sum):
    """Adds in the addends' own number type, which rounds: in another order the last bits are others."""

    limbs, limit = 1, inf

    def __init__(self, dtype: torch.dtype, addends: int):
        self.dtype = dtype

    def add(self, limbs: Tensor, x: Tensor, weight: float) -> None:
        """Add `weight * x`, (n,), to the limbs, (1, n)."""
        (limb,) = limbs
        limb.add_(x, alpha=weight) if x.is_floating_point() else limb.add_(weight * x)

    def value(self, limbs: Tensor) -> Tensor:
        """What the limbs stand for, (n,)."""
        return limbs[0]


class ExactSum(Sum):
    """Adds multiples of two fixed steps, without rounding: in any order, over any ranks, the same bits.

    An addend is split into a multiple of a coarse step and one of a fine step (Demmel and Nguyen,
    "Fast reproducible floating-point summation", ARITH 2013). Float64 adds multiples of a step
    exactly as long as they stay below 2^53 of them, and the steps are so coarse that they do: sums
    of multiples are associative. What an addend has below the fine step, `resolution`, is rounded
    away before it is added: 2^-71 for 10 clients, 2^-59 for 1,000. Numbers that are not finite make
    the value not finite; finite ones from `limit` on are added up, but depend on the order again.
    """

    limbs, dtype, limit = 2, torch.float64, 2.0**24

    def __init__(self, dtype: torch.dtype, addends: int):
        bits = ceil(log2(max(addends, 1)))  # that so many addends may need on top of those of one
        coarse = 24 + bits + 2 - 53
        fine = coarse + bits + 1 - 53
        self.resolution = 2.0**fine
        self._rounders = [1.5 * 2.0 ** (52 + step) for step in (coarse, fine)]

    def add(self, limbs: Tensor, x: Tensor, weight: float) -> None:
        """Add `weight * x`, (n,), to the limbs, (2, n)."""
        for part, of in zip(limbs.split(BLOCK, dim=1), x.split(BLOCK), strict=True):
            rest = of.double() * weight
            for limb, rounder in zip(part, self._rounders, strict=True):
                multiple = (rest + rounder).sub_(
                    rounder
                )  # the last bit of a number about `rounder` is worth a step
                limb += multiple
                rest -= multiple

    def value(self, limbs: Tensor) -> Tensor:
        """What the limbs stand for, (n,)."""
        return limbs.sum(0)


BLOCK = 2**18
"""Numbers that are split at a time, in a processor's cache."""
