"""Sums over clients and ranks: plain ones, and exact ones that do not depend on the order."""

from math import ceil, inf, log2

import torch
from torch import Tensor

BLOCK = 2**18
"""Numbers that are split at a time, in a processor's cache."""


class PlainSum:
    """Adds vectors in their own number type: the order changes the last bits.

    A sum is held as `limbs`: one or more vectors whose sum is the value. Limbs of several ranks add
    up number by number.

    Args:
        dtype: Number type of the vectors.
        addends: The most vectors of a sum, on all ranks together; their weights are 1 on average.

    Attributes:
        limbs: Number of limbs.
        dtype: Their number type.
        limit: Bound on the size of an addend.
    """

    limbs: int = 1
    dtype: torch.dtype
    limit: float = inf

    def __init__(self, dtype: torch.dtype, addends: int):
        self.dtype = dtype

    def add(self, limbs: Tensor, x: Tensor, weight: float | Tensor) -> None:
        """Add `weight * x`, (n,), to the limbs, (limbs, n)."""
        (limb,) = limbs
        if isinstance(weight, Tensor) or not x.is_floating_point():
            limb.add_(weight * x)
        else:
            limb.add_(x, alpha=weight)

    def value(self, limbs: Tensor) -> Tensor:
        """The sum that the limbs represent, (n,)."""
        return limbs.sum(0)


class ExactSum(PlainSum):
    """Adds multiples of two fixed steps without rounding: the same bits in any order.

    An addend is split into a multiple of a coarse step and one of a fine step (Demmel and Nguyen,
    "Fast Reproducible Floating-Point Summation", ARITH 2013). Float64 holds fewer than 2^53
    multiples of a step exactly, and the steps are so coarse that sums stay below that. Hence
    addition is associative. The part of an addend below the fine step, `resolution`, is rounded
    away first: 2^-71 for 10 clients, 2^-59 for 1,000. If a number is not finite, neither is the
    value. Finite numbers from `limit` on are added up, but depend on the order.
    """

    limbs, dtype, limit = 2, torch.float64, 2.0**24

    def __init__(self, dtype: torch.dtype, addends: int):
        bits = ceil(log2(max(addends, 1)))  # needed by all addends in addition to one's
        coarse = 24 + bits + 2 - 53
        fine = coarse + bits + 1 - 53
        self.resolution = 2.0**fine
        # The last bit of a number about as large as a rounder is worth one step.
        self._rounders = [1.5 * 2.0 ** (52 + step) for step in (coarse, fine)]

    def add(self, limbs: Tensor, x: Tensor, weight: float | Tensor) -> None:
        """Add `weight * x`, (n,), to the limbs, (2, n)."""
        for part, block in zip(limbs.split(BLOCK, dim=1), x.split(BLOCK), strict=True):
            rest = block.double() * weight
            for limb, rounder in zip(part, self._rounders, strict=True):
                multiple = (rest + rounder).sub_(rounder)
                limb += multiple
                rest -= multiple
