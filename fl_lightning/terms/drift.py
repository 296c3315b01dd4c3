"""Drift correction: additions to the local gradient, and the variates and momenta behind them."""

from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from fl_lightning.core.constraints import NonNegativeFloat, PositiveFloat, PositiveFraction
from fl_lightning.core.oracle import Oracle
from fl_lightning.core.term import Term, View, zeros


@dataclass(frozen=True)
class Proximal(Term):
    """FedProx's quadratic pull to the received model: `g + mu (w - w^t)`.

    With `split` the part `mu w` is left to an `UnclippedPull`.
    """

    mu: NonNegativeFloat = 0.1
    split: bool = False

    def gradient(self, oracle: Oracle, w: Tensor, v: View) -> Tensor:
        return oracle(w) + self.mu * (-v.anchor if self.split else w - v.anchor)


Fact = Literal["steps", "epochs", "span", "size", "nominal"]
"""A number of the visit, by its name in the view."""


def fact(v: View, name: Fact | None) -> Any:
    """A number of the visit; 1 for None."""
    return 1.0 if name is None else getattr(v, name)


@dataclass(frozen=True)
class UnclippedPull(Term):
    """The part `+ mu w` of a proximal pull, outside of any clipping.

    FedDyn's and FL-Simulator's code puts it into the weight decay, so that clipping sees only
    `mu (h_i - w^t)`. This and a `split` term are together that pull.
    """

    mu: NonNegativeFloat = 0.1
    scale: Fact | None = None
    roles = frozenset({"unclipped"})

    def gradient(self, oracle: Oracle, w: Tensor, v: View) -> Tensor:
        return oracle(w) + self.mu / fact(v, self.scale) * w


@dataclass(frozen=True)
class ControlVariate(Term):
    """SCAFFOLD's control variates, option II: `g + c - c_i`.

    After a visit `c_i <- c_i - c + (w^t - u_i) / (K eta)`; c is the mean of all c_i.
    """

    client = {"c_i": zeros}
    server = {"c": zeros}

    def gradient(self, oracle: Oracle, w: Tensor, v: View) -> Tensor:
        return oracle(w) + (v.c - v.c_i)

    def report(self, w: Tensor, v: View) -> Tensor:
        old = v.c_i
        v.c_i = v.c_i - v.c + (v.origin - w) / v.span
        return v.c_i - old

    def update(self, delta: Tensor, mean: Tensor, v: View) -> Tensor:
        v.c = v.c + v.share * mean
        return delta


@dataclass(frozen=True)
class ReleasedControlVariate(ControlVariate):
    """Control variates as in released code: `g + k (c / scale - c_i)`.

    Attributes:
        k: Coefficient of the correction (FedLESAM-S's code 0.1).
        length: Divisor of the move.
        scale: Divisor of c in the step, and weight of the message: FedSSG's and FedDC's code.
        whole: Do not divide c in c_i's update (FedSSG's SCAFFOLD).
    """

    k: NonNegativeFloat = 1.0
    length: Fact = "span"
    scale: Fact | None = None
    whole: bool = False

    def gradient(self, oracle: Oracle, w: Tensor, v: View) -> Tensor:
        return oracle(w) + self.k * (v.c / fact(v, self.scale) - v.c_i)

    def report(self, w: Tensor, v: View) -> Tensor:
        old, scale = v.c_i, fact(v, self.scale)
        c = v.c / (1.0 if self.whole else scale)
        v.c_i = v.c_i - c + (v.origin - w) / fact(v, self.length)
        return scale * (v.c_i - old)


@dataclass(frozen=True)
class LastGradientVariate(Term):
    """`g - d_i`, d_i being the client's last mean gradient: FedNova in FedSOL's repository."""

    client = {"d_i": zeros}

    def gradient(self, oracle: Oracle, w: Tensor, v: View) -> Tensor:
        return oracle(w) - v.d_i

    def report(self, w: Tensor, v: View) -> Any:
        v.d_i = (v.origin - w) / v.span
        return ()


@dataclass(frozen=True)
class CenteredGradientVariate(LastGradientVariate):
    """The same variates, centered: `g + d - d_i`, d being the mean of all d_i."""

    server = {"d": zeros}

    def gradient(self, oracle: Oracle, w: Tensor, v: View) -> Tensor:
        return oracle(w) + v.d - v.d_i

    def report(self, w: Tensor, v: View) -> Tensor:
        old = v.d_i
        super().report(w, v)
        return v.d_i - old

    def update(self, delta: Tensor, mean: Tensor, v: View) -> Tensor:
        v.d = v.d + v.share * mean
        return delta


@dataclass(frozen=True)
class ClientMomentum(Term):
    """FedCM's momentum in each step: `alpha g + (1 - alpha) m`.

    m is the cohort's last mean gradient; `gain` replaces alpha before g (1 in FedLESAM's code).
    """

    alpha: PositiveFraction = 0.1
    gain: NonNegativeFloat | None = None
    server = {"m": zeros}

    def gradient(self, oracle: Oracle, w: Tensor, v: View) -> Tensor:
        gain = self.alpha if self.gain is None else self.gain
        return gain * oracle(w) + (1 - self.alpha) * v.m

    def report(self, w: Tensor, v: View) -> Tensor:
        return (v.origin - w) / v.span

    def update(self, delta: Tensor, mean: Tensor, v: View) -> Tensor:
        v.m = mean
        return delta


@dataclass(frozen=True)
class Clip(Term):
    """The direction scaled down to norm `max_norm`. Outermost; weight decay stays outside.

    Logs `clipped`, the share of the steps that it scales down.
    """

    max_norm: PositiveFloat = 10.0
    logs = ("clipped",)

    def gradient(self, oracle: Oracle, w: Tensor, v: View) -> Tensor:
        g = oracle(w)
        factor = self.max_norm / (g.norm() + 1e-6)
        v.log("clipped", factor < 1)
        return g * factor.clamp(max=1.0)
