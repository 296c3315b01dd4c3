"""Drift correction: additions to the local gradient, and the variates and momenta behind them."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fl_lightning.core.constraints import (
    BelowOneFloat,
    NonNegativeFloat,
    PositiveFloat,
    PositiveFraction,
)
from fl_lightning.core.oracle import Oracle
from fl_lightning.core.term import Term, View, initial, scalar, zeros
from fl_lightning.terms.server import weighted


@dataclass(frozen=True)
class Proximal(Term):
    """FedProx's quadratic pull to the received model: `g + mu (w - w^t)`."""

    mu: NonNegativeFloat = 0.1

    def gradient(self, oracle: Oracle, w: Tensor, v: View) -> Tensor:
        return oracle(w) + self.mu * (w - v.anchor)


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
        v.c_i = v.c_i - v.c + (v.origin - w) / v.lr_sum
        return v.c_i - old

    def update(self, delta: Tensor, mean: Tensor, v: View) -> Tensor:
        v.c = v.c + v.participation * mean
        return delta


@dataclass(frozen=True)
class MovingVariate(ControlVariate):
    """FedMoSWA's control variates: c is a moving average, `c <- c + gamma mean_S(c_i - c)`.

    In the first round c becomes the cohort's mean.
    """

    gamma: PositiveFraction = 0.4

    def report(self, w: Tensor, v: View) -> Tensor:
        super().report(w, v)
        return v.c_i - v.c

    def update(self, delta: Tensor, mean: Tensor, v: View) -> Tensor:
        v.c = v.c + (self.gamma if v.round else 1.0) * mean
        return delta


@dataclass(frozen=True)
class CenteredGradientVariate(Term):
    """FedNova's variates (FedSOL's Table 4): `g + d - d_i`.

    d_i is the client's last mean gradient, d the mean of all d_i.
    """

    client = {"d_i": zeros}
    server = {"d": zeros}

    def gradient(self, oracle: Oracle, w: Tensor, v: View) -> Tensor:
        return oracle(w) + v.d - v.d_i

    def report(self, w: Tensor, v: View) -> Tensor:
        old = v.d_i
        v.d_i = (v.origin - w) / v.lr_sum
        return v.d_i - old

    def update(self, delta: Tensor, mean: Tensor, v: View) -> Tensor:
        v.d = v.d + v.participation * mean
        return delta


@dataclass(frozen=True)
class ClientMomentum(Term):
    """FedCM's momentum in each step: `alpha g + (1 - alpha) m`, m being the last mean gradient."""

    alpha: PositiveFraction = 0.1
    server = {"m": zeros}

    def gradient(self, oracle: Oracle, w: Tensor, v: View) -> Tensor:
        return self.alpha * oracle(w) + (1 - self.alpha) * v.m

    def report(self, w: Tensor, v: View) -> Tensor:
        return (v.origin - w) / v.lr_sum

    def update(self, delta: Tensor, mean: Tensor, v: View) -> Tensor:
        v.m = mean
        return delta


@dataclass(frozen=True)
class FixedMomentum(Term):
    """MimeLite's momentum, which rests during a visit: `(1 - beta) g + beta m`.

    The server updates m by the cohort's gradients at w^t, `m <- (1 - beta) mean(g(w^t)) + beta m`,
    each the mean over the batches of a visit, at one more gradient a step.
    """

    beta: BelowOneFloat = 0.9
    server = {"m": zeros}
    local = {"G": zeros}

    def gradient(self, oracle: Oracle, w: Tensor, v: View) -> Tensor:
        g = oracle(w)  # first: running statistics are of the first pass
        v.G = v.G + oracle(v.anchor) / v.steps
        return (1 - self.beta) * g + self.beta * v.m

    def report(self, w: Tensor, v: View) -> tuple[Tensor, Tensor]:
        return v.weight * v.G, v.weight

    def update(self, delta: Tensor, mean: tuple[Tensor, Tensor], v: View) -> Tensor:
        v.m = (1 - self.beta) * weighted(mean) + self.beta * v.m
        return delta


@dataclass(frozen=True)
class BiasEstimate(Term):
    """AdaBest: `g - h_i`, with `h_i <- h_i / (rounds since the last visit) + mu (w^t - u_i)`.

    The server adds to the mean model of the cohort beta times what it has moved since the last one.
    """

    mu: NonNegativeFloat = 0.1
    beta: BelowOneFloat = 0.85
    client = {"h_i": zeros, "seen": scalar}
    server = {"mean": initial}

    def gradient(self, oracle: Oracle, w: Tensor, v: View) -> Tensor:
        return oracle(w) - v.h_i

    def report(self, w: Tensor, v: View) -> Any:
        now = torch.zeros_like(v.seen) + v.round + 1
        v.h_i, v.seen = v.h_i / (now - v.seen) + self.mu * (v.origin - w), now
        return ()

    def update(self, delta: Tensor, mean: Any, v: View) -> Tensor:
        before, v.mean = v.mean, v.anchor + delta
        return delta + self.beta * (v.mean - before)


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
