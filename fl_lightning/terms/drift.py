"""Drift correction: what is added to the local gradient, and the variates and momenta behind it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from fl_lightning.core.constraints import NonNegativeFloat, PositiveFloat, PositiveFraction
from fl_lightning.core.oracle import Oracle
from fl_lightning.core.term import Term, zeros


@dataclass(frozen=True)
class Proximal(Term):
    """`g + mu (w - w^t)`; with `split` without `mu w` (see `UnclippedPull`). FedProx: Li et al., MLSys 2020."""

    mu: NonNegativeFloat = 0.1
    split: bool = False

    def gradient(self, oracle: Oracle, w: Tensor, v: Any) -> Tensor:
        return oracle(w) + self.mu * (-v.anchor if self.split else w - v.anchor)


Scale = Callable[[Any], Tensor | float]
"""A number of the visit, e.g. the client's relative size."""


def one(v: Any) -> float:
    """Every client counts the same."""
    return 1.0


def om(v: Any) -> Tensor:
    """om_i = N n_i / n: the client's samples over the mean of all clients."""
    return v.size


@dataclass(frozen=True)
class UnclippedPull(Term):
    """`+ mu w` outside of any clipping.

    FedDyn's and FL-Simulator's code put this half of a proximal pull into the weight decay, so that
    clipping sees only the other half, `mu (h_i - w^t)`; this and a `split` term are that pull.
    """

    mu: NonNegativeFloat = 0.1
    scale: Scale = one
    roles = frozenset({"unclipped"})

    def gradient(self, oracle: Oracle, w: Tensor, v: Any) -> Tensor:
        return oracle(w) + self.mu / self.scale(v) * w


def own_span(v: Any) -> Tensor:
    """K_i eta of this very visit."""
    return v.span


def nominal(v: Any) -> float:
    """K eta_0, one number for everybody and for ever: the code of FedDC and FedSSG."""
    return v.nominal


@dataclass(frozen=True)
class ControlVariate(Term):
    """`g + k (c - c_i)`, with `c_i <- c_i - c + (w^t - u_i) / length`.

    SCAFFOLD, option II: Karimireddy et al., ICML 2020. `scale` weighs c by the client's size in the
        step, as FedSSG's
    and FedDC's code does, and `kept` in c_i's update (SCAFFOLD of that code: `one`).
    """

    k: NonNegativeFloat = 1.0
    length: Scale = own_span
    scale: Scale = one
    kept: Scale | None = None
    client = {"c_i": zeros}
    server = {"c": zeros}

    def gradient(self, oracle: Oracle, w: Tensor, v: Any) -> Tensor:
        return oracle(w) + self.k * (v.c / self.scale(v) - v.c_i)

    def report(self, w: Tensor, v: Any) -> Tensor:
        old = v.c_i
        v.c_i = v.c_i - v.c / (self.kept or self.scale)(v) + (v.origin - w) / self.length(v)
        return self.scale(v) * (v.c_i - old)

    def update(self, delta: Tensor, mean: Tensor, v: Any) -> Tensor:
        v.c = v.c + v.share * mean
        return delta


@dataclass(frozen=True)
class LastGradientVariate(Term):
    """`g - d_i`, with d_i the client's last mean gradient: FedNova's variates as FedSOL's repository released them."""

    client = {"d_i": zeros}

    def gradient(self, oracle: Oracle, w: Tensor, v: Any) -> Tensor:
        return oracle(w) - v.d_i

    def report(self, w: Tensor, v: Any) -> Any:
        v.d_i = (v.origin - w) / v.span
        return ()


@dataclass(frozen=True)
class CenteredGradientVariate(LastGradientVariate):
    """The same variates as meant: `g + d - d_i`, with d the mean of all d_i."""

    server = {"d": zeros}

    def gradient(self, oracle: Oracle, w: Tensor, v: Any) -> Tensor:
        return oracle(w) + v.d - v.d_i

    def report(self, w: Tensor, v: Any) -> Tensor:
        old = v.d_i
        super().report(w, v)
        return v.d_i - old

    def update(self, delta: Tensor, mean: Tensor, v: Any) -> Tensor:
        v.d = v.d + v.share * mean
        return delta


@dataclass(frozen=True)
class ClientMomentum(Term):
    """`alpha g + (1 - alpha) m`, with m the cohort's last mean gradient. FedCM: Xu et al., arXiv 2106.10874.

    `gain` replaces alpha in front of g (1 in FedLESAM's MoFedSAM).
    """

    alpha: PositiveFraction = 0.1
    gain: NonNegativeFloat | None = None
    server = {"m": zeros}

    def gradient(self, oracle: Oracle, w: Tensor, v: Any) -> Tensor:
        gain = self.alpha if self.gain is None else self.gain
        return gain * oracle(w) + (1 - self.alpha) * v.m

    def report(self, w: Tensor, v: Any) -> Tensor:
        return (v.origin - w) / v.span

    def update(self, delta: Tensor, mean: Tensor, v: Any) -> Tensor:
        v.m = mean
        return delta


@dataclass(frozen=True)
class Clip(Term):
    """Scale the whole direction down to norm `max_norm`; outermost, so that weight decay stays outside."""

    max_norm: PositiveFloat = 10.0

    def gradient(self, oracle: Oracle, w: Tensor, v: Any) -> Tensor:
        g = oracle(w)
        return g * (self.max_norm / (g.norm() + 1e-6)).clamp(max=1.0)
