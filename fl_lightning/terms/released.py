"""Variants of the terms that only released code has; options of the methods choose them."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from fl_lightning.core.constraints import NonNegativeFloat
from fl_lightning.core.oracle import Oracle
from fl_lightning.core.term import Term, View, zeros
from fl_lightning.core.vector import unit
from fl_lightning.terms.drift import ClientMomentum, ControlVariate, Proximal
from fl_lightning.terms.dual import CohortDual, DynamicRegularizer, StartDual
from fl_lightning.terms.perturb import SMOO, TOGA
from fl_lightning.terms.server import AcceleratedStart
from fl_lightning.terms.trajectory import WMSAM, LastRound

# A proximal pull `mu (w - w^t)` of which clipping sees only `-mu w^t`


@dataclass(frozen=True)
class SplitProximal(Proximal):
    """FedProx in FL-Simulator: `g - mu w^t`; an `UnclippedPull` has the rest."""

    def gradient(self, oracle: Oracle, w: Tensor, v: View) -> Tensor:
        return oracle(w) - self.mu * v.anchor


@dataclass(frozen=True)
class UnclippedPull(Term):
    """The part `mu w` of a proximal pull, outside of any clipping.

    FedDyn's and FL-Simulator's code puts it into the weight decay.

    Attributes:
        mu: Strength of the pull.
        size_weighting: Divide it by the client's relative size.
    """

    mu: NonNegativeFloat = 0.1
    size_weighting: bool = False
    roles = frozenset({"unclipped"})

    def gradient(self, oracle: Oracle, w: Tensor, v: View) -> Tensor:
        return oracle(w) + (self.mu / v.size if self.size_weighting else self.mu) * w


@dataclass(frozen=True)
class ReleasedRegularizer(DynamicRegularizer):
    """FedDyn's dual in released code.

    Attributes:
        split: Leave the part `alpha w` to an `UnclippedPull`.
        size_weighting: Divide alpha by the client's relative size.
    """

    split: bool = False
    size_weighting: bool = False

    def gradient(self, oracle: Oracle, w: Tensor, v: View) -> Tensor:
        alpha = self.alpha / v.size if self.size_weighting else self.alpha
        return oracle(w) + alpha * (v.h_i - v.anchor if self.split else v.h_i + w - v.anchor)


@dataclass(frozen=True)
class NormPull(Term):
    """The gradient of `mu ||w - w^t||` without a square, as in FedGMT's repository.

    Its length is mu wherever w is not w^t.
    """

    mu: NonNegativeFloat = 0.05

    def gradient(self, oracle: Oracle, w: Tensor, v: View) -> Tensor:
        return oracle(w) + self.mu * unit(w - v.anchor)


@dataclass(frozen=True)
class ReleasedStartDual(StartDual):
    """FedGloSS' dual in its code, whose server divides by the cohort's size twice."""

    def update(self, delta: Tensor, mean: Tensor, v: View) -> Tensor:
        v.h = v.h + mean / v.clients
        return delta + v.h


@dataclass(frozen=True)
class ReleasedCohortDual(CohortDual, ReleasedRegularizer):
    """The same, with the cohort's mean dual."""


# Control variates and momenta


@dataclass(frozen=True)
class ReleasedControlVariate(ControlVariate):
    """SCAFFOLD's control variates in released code: `g + k (c - c_i)`.

    Attributes:
        k: Coefficient of the correction (FedLESAM-S's code 0.1).
        base_lr: Divide the move by K eta_0 instead of this visit's own steps and rates.
        size_weighting: Divide c by the client's relative size, which weighs the change of c_i.
        whole: Do not divide c where c_i learns (FedSSG's SCAFFOLD).
    """

    k: NonNegativeFloat = 1.0
    base_lr: bool = False
    size_weighting: bool = False
    whole: bool = False

    def gradient(self, oracle: Oracle, w: Tensor, v: View) -> Tensor:
        c = v.c / v.size if self.size_weighting else v.c
        return oracle(w) + self.k * (c - v.c_i)

    def report(self, w: Tensor, v: View) -> Tensor:
        old, size = v.c_i, v.size if self.size_weighting else 1.0
        c = v.c if self.whole else v.c / size
        v.c_i = v.c_i - c + (v.origin - w) / (v.base_lr_sum if self.base_lr else v.lr_sum)
        return size * (v.c_i - old)


@dataclass(frozen=True)
class LastGradientVariate(Term):
    """`g - d_i`, d_i being the client's last mean gradient: FedNova in FedSOL's repository.

    It forgets to add back the mean of all d_i, as `CenteredGradientVariate` does.
    """

    client = {"d_i": zeros}

    def gradient(self, oracle: Oracle, w: Tensor, v: View) -> Tensor:
        return oracle(w) - v.d_i

    def report(self, w: Tensor, v: View) -> Any:
        v.d_i = (v.origin - w) / v.lr_sum
        return ()


@dataclass(frozen=True)
class ReleasedClientMomentum(ClientMomentum):
    """`g + (1 - alpha) m`: MoFedSAM in FedLESAM's repository, which forgets alpha before g."""

    def gradient(self, oracle: Oracle, w: Tensor, v: View) -> Tensor:
        return oracle(w) + (1 - self.alpha) * v.m


# Perturbations


@dataclass(frozen=True)
class ReleasedSMOO(SMOO):
    """FedSMOO's perturbation in its code, where a client reports mu_i alone."""

    def report(self, w: Tensor, v: View) -> Tensor:
        return v.mu_i


class ByFirstCoordinates:
    """A direction with one number for tensor k: the k-th coordinate, over the sum of these."""

    eps: float

    def direction(self, along: Tensor, v: View) -> Tensor:
        first = along[: len(v.layout.sizes)]
        return v.layout.spread(first / (first.abs().sum() + self.eps))


@dataclass(frozen=True)
class ReleasedLastRound(ByFirstCoordinates, LastRound):
    """FedLESAM's perturbation in its code, which means to divide G by the sum of its norms.

    By an indexing error it shifts all entries of tensor k by the k-th coordinate of G.
    """


@dataclass(frozen=True)
class ReleasedWMSAM(ByFirstCoordinates, WMSAM):
    """FedWMSAM in its code, which has the indexing error of FedLESAM's."""


@dataclass(frozen=True)
class ReleasedTOGA(TOGA):
    """FedTOGA in a third party's code, with its dual: `e = rho unit(g + R + kappa d_i)`.

    R is the whole direction of the previous step, `g(w + e) + lam d_i + beta Delta`, and
    `d_i = h_i - w^t`. An `UnclippedPull` has the rest, `lam w`.

    Attributes:
        lam: Strength of the dual and of the pull.
        participation: Replaces M/N in the mean of the duals.
    """

    lam: NonNegativeFloat = 0.1
    participation: NonNegativeFloat | None = None
    client = {"h_i": zeros}
    server = {"Delta": zeros, "h": zeros}
    local = {"R": zeros}

    def gradient(self, oracle: Oracle, w: Tensor, v: View) -> Tensor:
        d_i = v.h_i - v.anchor
        e = self.rho * unit(oracle(w) + v.R + self.kappa * d_i, self.eps)
        v.R = oracle(w + e) + self.lam * d_i + self.beta * v.Delta
        return v.R

    def report(self, w: Tensor, v: View) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        v.h_i = v.h_i + w - v.anchor
        return super().report(w, v), w - v.anchor

    def update(self, delta: Tensor, mean: Any, v: View) -> Tensor:
        share = v.participation if self.participation is None else self.participation
        v.h = v.h + share * mean[1]
        return super().update(delta + v.h, mean[0], v)


# Momentum of the server


@dataclass(frozen=True)
class ReleasedStart(AcceleratedStart):
    """FedNSAM's start in its code, which multiplies beta by the new mean: `m = (1 + beta) delta`.

    So m remembers nothing; in the first round it is delta.
    """

    def update(self, delta: Tensor, mean: Any, v: View) -> Tensor:
        v.m = (1 + self.beta * (v.round > 0)) * delta
        return v.m
