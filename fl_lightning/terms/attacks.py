"""Attacks of some clients, to try robust aggregation on."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from fl_lightning.core.constraints import BelowOneFloat, NonNegativeFloat, PositiveFloat, Range
from fl_lightning.core.losses import IGNORED, cross_entropy
from fl_lightning.core.oracle import ForwardPass, Oracle
from fl_lightning.core.term import Term, View, WrappedTerm
from fl_lightning.terms.distill import check_labels, check_scores
from fl_lightning.terms.robust import part_of

BelowHalf = Annotated[float, Range("a number of at least 0 and below 0.5", 0, 0.5, "[)")]


@dataclass(frozen=True)
class Attack(Term):
    """An attack of the part `share` of the N clients: the first share N, rounded."""

    share: BelowOneFloat = 0.2

    def by(self, v: View) -> Tensor:
        """Whether the client attacks."""
        return v.client + 0.5 < self.share * v.clients

    def summary_lines(self, first: View, last: View) -> Iterable[str]:
        if self.share * first.clients <= 0.5:
            yield f"no client attacks: share {self.share} of {first.clients} clients is below one"


@dataclass(frozen=True)
class SignFlip(Attack):
    """An attack: the first clients send `scale` times the opposite of their update."""

    scale: NonNegativeFloat = 1.0

    def send(self, delta: Tensor, v: View) -> Tensor:
        return torch.where(self.by(v), -self.scale * delta, delta)


@dataclass(frozen=True)
class LabelFlip(Attack):
    """An attack: the first clients train on the class C - 1 - y of C in the place of y.

    References:
        Fang et al., USENIX Security 2020, https://arxiv.org/abs/1911.11815
    """

    roles = frozenset({"labels"})
    needs_cross_entropy = True

    def gradient(self, oracle: Oracle, w: Tensor, v: View) -> Tensor:
        def loss(b: ForwardPass) -> Tensor:
            check_scores(b)
            check_labels(b.y, *b.out.shape[:-1])
            flipped = torch.where(b.y == IGNORED, b.y, b.out.shape[-1] - 1 - b.y)
            change = cross_entropy(b.out, flipped) - cross_entropy(b.out, b.y)
            return b.loss + torch.where(self.by(v), change, 0.0)

        return oracle.of(loss)(w)


@dataclass(frozen=True)
class Mean(Term):
    """The mean of the updates, in the place of a rule."""


@dataclass(frozen=True)
class Collusion(WrappedTerm):
    """An attack of clients that know what the others send, before another term combines it.

    They are the first ones of each round's cohort, and all send the same in place of their updates.

    Attributes:
        inner: The term that combines the updates; `Mean()` if none does.
        share: The part of the cohort that attacks, rounded down.
    """

    share: BelowHalf = 0.2

    def combine(self, updates: Tensor, v: View) -> Tensor:
        attackers = part_of(self.share, len(updates))
        honest = updates[attackers:]
        sent = self.falsified(honest).expand(attackers, -1)
        return self.inner.combine(torch.cat([sent, honest]), v)

    def falsified(self, honest: Tensor) -> Tensor:
        """What the attackers send, (d,), from the other updates of the cohort, (M, d)."""
        raise NotImplementedError

    def summary_lines(self, first: View, last: View) -> Iterable[str]:
        yield from self.inner.summary_lines(first, last)
        cohort = round(first.participation * first.clients)
        if not part_of(self.share, cohort):
            yield f"no client attacks: share {self.share} of {cohort} clients a round is below one"


@dataclass(frozen=True)
class LittleIsEnough(Collusion):
    """ALIE: the mean of the others minus `z` of their standard deviations in each number.

    The paper's attackers estimate both from their own data; z is 1.5 in the authors' program.

    References:
        Baruch, Baruch and Goldberg, NeurIPS 2019, https://arxiv.org/abs/1902.06156
    """

    z: PositiveFloat = 1.5

    def falsified(self, honest: Tensor) -> Tensor:
        return honest.mean(0) - self.z * honest.std(0, correction=0)


@dataclass(frozen=True)
class InnerProduct(Collusion):
    """IPM: the opposite of the others' mean, times `epsilon`.

    References:
        Xie, Koyejo and Gupta, UAI 2019, https://arxiv.org/abs/1903.03936
    """

    epsilon: PositiveFloat = 0.5

    def falsified(self, honest: Tensor) -> Tensor:
        return -self.epsilon * honest.mean(0)


@dataclass(frozen=True)
class MinMax(Collusion):
    """Min-Max: as far from one of the others as the farthest two of them are from each other.

    It is m - gamma s, with their mean m, their standard deviation s in each number, and the largest
    gamma whose distance to no update exceeds the largest one between two updates. The paper
    searches for it. Here each update gives the positive root of an equation; the least one counts.

    References:
        Shejwalkar and Houmansadr, NDSS 2021, https://doi.org/10.14722/ndss.2021.24498
    """

    def falsified(self, honest: Tensor) -> Tensor:
        mean, deviation = honest.mean(0), honest.std(0, correction=0)
        exact = "donot_use_mm_for_euclid_dist"
        farthest = torch.cdist(honest, honest, compute_mode=exact).max()
        from_mean = mean - honest
        # |from_mean - gamma deviation|^2 = farthest^2
        along, square = from_mean @ deviation, deviation.square().sum()
        left = farthest.square() - from_mean.square().sum(1)
        gamma = (along + (along.square() + square * left).clamp(min=0).sqrt()) / square
        return mean - gamma.min().nan_to_num(0.0) * deviation
