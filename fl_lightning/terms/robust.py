"""Robust aggregation: rules that a few clients cannot decide."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from fl_lightning.core.constraints import BelowOneFloat, PositiveFloat, PositiveInt, Range
from fl_lightning.core.term import Term, View, zeros

UpToHalf = Annotated[float, Range("a number from 0 to 0.5", 0, 0.5)]


@dataclass(frozen=True)
class TrimmedMean(Term):
    """The mean of each number without its smallest and its largest values in the cohort.

    Attributes:
        share: The part of the cohort that is left out on each side; 0.5 leaves the median.
    """

    share: UpToHalf = 0.2

    def combine(self, updates: Tensor, v: View) -> Tensor:
        left_out = min(part_of(self.share, len(updates)), (len(updates) - 1) // 2)
        return updates.sort(0).values[left_out : len(updates) - left_out].mean(0)


@dataclass(frozen=True)
class Krum(Term):
    """The update that is nearest to its neighbors, or the mean of the nearest ones (Multi-Krum).

    An update's score is the sum of its squared distances to the M - f - 2 nearest ones, of a cohort
    of M with f attackers. Those with the lowest scores are taken.

    Attributes:
        share: f / M, rounded down to a whole f. Krum's bound needs M > 2 f + 2.
        kept: The number of updates that are taken; 1 is Krum.
    """

    share: BelowOneFloat = 0.2
    kept: PositiveInt = 1

    def combine(self, updates: Tensor, v: View) -> Tensor:
        near = max(1, len(updates) - part_of(self.share, len(updates)) - 2)
        exact = "donot_use_mm_for_euclid_dist"  # x.x - 2 x.y + y.y would round small distances
        distances = torch.cdist(updates, updates, compute_mode=exact).square()
        scores = distances.sort(1).values[:, 1 : 1 + near].sum(1)  # the first is its own, 0
        return updates[scores.argsort(stable=True)[: self.kept]].mean(0)

    def summary_lines(self, first: View, last: View) -> Iterable[str]:
        cohort = round(first.participation * first.clients)
        if cohort <= 2 * part_of(self.share, cohort) + 2:
            yield f"{cohort} clients a round are too few for Krum's bound with share {self.share}"


@dataclass(frozen=True)
class GeometricMedian(Term):
    """RFA: nearly the point with the least sum of distances to the updates.

    Weiszfeld's steps begin at the mean z: `z <- sum_i b_i x_i / sum_i b_i` with
    `b_i = 1 / max(nu, ||z - x_i||)`. The authors' code weighs clients by their samples, too.

    Attributes:
        steps: The number of steps.
        nu: The least distance that counts.
    """

    steps: PositiveInt = 4
    nu: PositiveFloat = 1e-5

    def combine(self, updates: Tensor, v: View) -> Tensor:
        z = updates.mean(0)
        for _ in range(self.steps):
            b = 1 / (updates - z).norm(dim=1).clamp(min=self.nu)
            z = b @ updates / b.sum()
        return z


@dataclass(frozen=True)
class CenteredClipping(Term):
    """The last round's result, and the mean of the differences from it, each clipped to a norm.

    From c = 0, or from the last round's, `c <- c + mean_i (x_i - c) min(1, tau / ||x_i - c||)`.

    Attributes:
        tau: The largest norm of a difference.
        steps: How often c is corrected in a round.
    """

    tau: PositiveFloat = 1.0
    steps: PositiveInt = 1
    server = {"c": zeros}

    def combine(self, updates: Tensor, v: View) -> Tensor:
        for _ in range(self.steps):
            difference = updates - v.c
            factor = (self.tau / difference.norm(dim=1, keepdim=True)).clamp(max=1)
            v.c = v.c + (factor * difference).mean(0)
        return v.c


def part_of(share: float, cohort: int) -> int:
    """The whole number in a share of a cohort; 29 in 0.29 of 100, whose product is below."""
    return int(share * cohort + 1e-9)
