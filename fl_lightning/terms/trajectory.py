"""Flatness along the path of the global model, mostly of one pass a step.

FedLESAM, FedWMSAM, FedGloSS, FedGF, FedNSAM, FedGMT and FedGKD.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fl_lightning.core.constraints import (
    BelowOneFloat,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    UnitInterval,
)
from fl_lightning.core.oracle import Oracle
from fl_lightning.core.term import Initializer, Term, View, initial, received, scalar, zeros
from fl_lightning.core.vector import unit
from fl_lightning.terms.distill import distilled
from fl_lightning.terms.perturb import Perturbation
from fl_lightning.terms.server import ServerMomentum


@dataclass(frozen=True)
class LESAM(Perturbation):
    """A perturbation back to the model o_i received at the last visit: `e = rho unit(o_i - w^t)`.

    At the first visit o_i is w^0; with `skip_first` nothing is perturbed there.
    """

    skip_first: bool = False
    local = {"e": zeros}

    @property
    def client(self) -> Mapping[str, Initializer]:  # type: ignore[override]
        return {"o_i": received if self.skip_first else initial}

    def start(self, w: Tensor, v: View) -> Tensor:
        v.e, v.o_i = self.rho * self.direction(v.o_i - v.anchor, v), v.anchor
        return w

    def gradient(self, oracle: Oracle, w: Tensor, v: View) -> Tensor:
        return oracle(w + v.e)


@dataclass(frozen=True)
class LastRound(Perturbation):
    """A perturbation against the global model's last move: `e = -rho G / ||G||`, G = w^t - w^(t-1).

    Equals `LESAM` under full participation.
    """

    server = {"last": initial}
    local = {"e": zeros}

    def start(self, w: Tensor, v: View) -> Tensor:
        v.e = -self.rho * self.direction(v.anchor - v.last, v)
        return w

    def gradient(self, oracle: Oracle, w: Tensor, v: View) -> Tensor:
        return oracle(w + v.e)

    def update(self, delta: Tensor, mean: Any, v: View) -> Tensor:
        v.last = v.anchor
        return delta


@dataclass(frozen=True)
class WMSAM(Perturbation):
    """FedWMSAM: `al g(w - rho unit(f)) + (1 - al) m_i`, f leading to a predicted global model.

    `f = w^t + k m_i - w` in step k, with the client's momentum `m_i = m + al / (1 - al) (c - c_i)`;
    m is the last mean gradient and c_i SCAFFOLD's variate. al is a moving average of
    `mean_S(1 - cos(g_i, m))` with the client's mean gradient g_i: who agrees with m follows it.

    Attributes:
        alpha: The first al.
        decay: Factor of m.
        steps: Let the prediction move by `-eta m_i`, as plain steps along m_i would.
        ahead: Take the gradient at `w + rho unit(f)`.
    """

    alpha: BelowOneFloat = 0.1
    decay: NonNegativeFloat = 1.0
    steps: bool = False
    ahead: bool = False
    eps: NonNegativeFloat = field(default=1e-7, kw_only=True)
    client = {"c_i": zeros}
    local = {"k": scalar}

    @property
    def server(self) -> Mapping[str, Initializer]:  # type: ignore[override]
        return {"c": zeros, "m": zeros, "al": lambda first, now: now.new_full((), self.alpha)}

    def gradient(self, oracle: Oracle, w: Tensor, v: View) -> Tensor:
        m_i = v.m + v.al / (1 - v.al) * (v.c - v.c_i)
        f = v.anchor + v.k * (-v.lr_sum / v.steps * m_i if self.steps else m_i) - w
        rho, v.k = self.rho if self.ahead else -self.rho, v.k + 1
        return v.al * oracle(w + rho * self.direction(f, v)) + (1 - v.al) * m_i

    def report(self, w: Tensor, v: View) -> tuple[Tensor, Tensor]:
        g_i = (v.origin - w) / v.lr_sum
        v.c_i = v.c_i - v.c + g_i
        return (1 - unit(g_i).dot(unit(v.m))) * (v.m != 0).any(), g_i

    def update(self, delta: Tensor, mean: tuple[Tensor, Tensor], v: View) -> Tensor:
        v.al = 0.99 * v.al + 0.01 * mean[0].clamp(0.1, 0.9)
        v.c = v.c + v.participation * (mean[1] - v.c)
        v.m = self.decay * mean[1]
        return delta


@dataclass(frozen=True)
class ServerSAM(Term):
    """FedGloSS: clients start at `w^t + rho unit(D)`, D being the last mean of `start - u_i`.

    The server applies their mean move to w^t itself: SAM on the server, with the last round's
    gradient as the ascent direction.
    """

    rho: NonNegativeFloat = 0.15
    server = {"D": zeros}
    roles = frozenset({"start"})

    def start(self, w: Tensor, v: View) -> Tensor:
        return w + self.rho * unit(v.D, 1e-30)

    def update(self, delta: Tensor, mean: Any, v: View) -> Tensor:
        v.D = -delta
        return delta


@dataclass(frozen=True)
class GF(LastRound):
    """FedGF: `g(c (w^t + e) + (1 - c) (w + rho unit(g)))`, e against the global model's last move.

    `e = -global_rho unit(w^t - w^(t-1))`. c is the share of the last `window` rounds in which the
    cohort's mean `||u_i - w^t||` was above the threshold; it is logged. Its attributes are the
    options of `fl_lightning.algorithms.fedgf`.
    """

    rho: NonNegativeFloat = 0.05
    global_rho: NonNegativeFloat | None = None
    threshold: NonNegativeFloat = 0.2
    window: PositiveInt = 30
    logs = ("c",)

    @property
    def server(self) -> Mapping[str, Initializer]:  # type: ignore[override]
        above = lambda first, now: now.new_zeros(self.window)  # noqa: E731
        return {"last": initial, "above": above, "c": scalar}

    def start(self, w: Tensor, v: View) -> Tensor:
        radius = self.rho if self.global_rho is None else self.global_rho
        v.e = -radius * self.direction(v.anchor - v.last, v)
        return w

    def gradient(self, oracle: Oracle, w: Tensor, v: View) -> Tensor:
        v.log("c", v.c)
        z = w + self.rho * unit(oracle(w), self.eps)
        return oracle(torch.lerp(z, v.anchor + v.e, v.c))

    def report(self, w: Tensor, v: View) -> Tensor:
        return (w - v.anchor).norm()

    def update(self, delta: Tensor, mean: Tensor, v: View) -> Tensor:
        bit = (mean > self.threshold).to(delta)
        v.above = torch.cat([v.above[1:], bit[None]])
        v.c = v.above.sum() / min(v.round + 1, self.window)
        return super().update(delta, mean, v)


@dataclass(frozen=True)
class NesterovAscent(ServerMomentum):
    """FedNSAM in one pass: `g(w + beta m - rho unit(m))`, m being the server's momentum.

    The first step of a visit is taken at w.
    """

    beta: BelowOneFloat = 0.85
    rho: NonNegativeFloat = 0.05
    eps: NonNegativeFloat = field(default=1e-7, kw_only=True)
    local = {"k": scalar}
    roles = frozenset({"server", "perturb"})

    def gradient(self, oracle: Oracle, w: Tensor, v: View) -> Tensor:
        moved, v.k = v.k > 0, v.k + 1
        return oracle(w + moved * (self.beta * v.m - self.rho * unit(v.m, self.eps)))


@dataclass(frozen=True)
class TrajectoryTeacher(Term):
    """FedGMT: adds `gamma tau^2 KL(e^t || local)` at tau, e^t being a moving average of models.

    `e^t = alpha e^(t-1) + (1 - alpha) w^t` over the global models, from `e^0 = w^0`.
    """

    gamma: NonNegativeFloat = 1.0
    alpha: UnitInterval = 0.95
    tau: PositiveFloat = 3.0
    server = {"e": initial}

    def gradient(self, oracle: Oracle, w: Tensor, v: View) -> Tensor:
        return distilled(oracle, w, self.average(v), self.gamma * self.tau**2, self.tau)

    def update(self, delta: Tensor, mean: Any, v: View) -> Tensor:
        v.e = self.average(v)
        return delta

    def average(self, v: View) -> Tensor:
        """e^t, of the average before this round and the received model."""
        return torch.lerp(v.anchor, v.e, self.alpha)


@dataclass(frozen=True)
class RecentTeacher(Term):
    """FedGKD: adds `gamma tau^2 KL(e^t || local)` at tau, e^t being the mean of recent models.

    These are the last `models` global ones, without w^0, so that the first round adds nothing.
    """

    gamma: NonNegativeFloat = 0.1
    models: PositiveInt = 5
    tau: PositiveFloat = 1.0

    @property
    def server(self) -> Mapping[str, Initializer]:  # type: ignore[override]
        past = lambda first, now: now.new_zeros(self.models - 1, *now.shape)  # noqa: E731
        return {"past": past, "rest": zeros, "n": scalar}

    def gradient(self, oracle: Oracle, w: Tensor, v: View) -> Tensor:
        teacher = (v.anchor + v.rest) / v.n.clamp(min=1)
        weight = self.gamma * self.tau**2 * v.n.clamp(max=1)
        return distilled(oracle, w, teacher, weight, self.tau)

    def update(self, delta: Tensor, mean: Any, v: View) -> Tensor:
        v.past = torch.cat([(v.n > 0) * v.anchor[None], v.past])[: self.models - 1]
        v.rest, v.n = v.past.sum(0), (v.n + 1).clamp(max=self.models)
        return delta
