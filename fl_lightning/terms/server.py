"""What the server does with the mean update, and where clients start."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from fl_lightning.core.constraints import BelowOneFloat, NonNegativeFloat, PositiveFloat
from fl_lightning.core.oracle import Oracle
from fl_lightning.core.term import Initializer, Term, View, initial, received, zeros


def weighted(mean: Sequence[Tensor]) -> Tensor:
    """The weighted mean, of the means of weighted messages and of weights; 0 of no client."""
    message, weight = mean
    return message / weight.clamp(min=torch.finfo(weight.dtype).tiny)


@dataclass(frozen=True)
class AdaptiveServer(Term):
    """FedAdam and its relatives: the server moves by `m / (sqrt(v) + tau)`.

    v begins as `v0`; None is the paper's tau^2. `torch.optim.Adam` begins at 0, and corrects it.
    """

    beta1: BelowOneFloat = 0.9
    beta2: BelowOneFloat = 0.99
    tau: PositiveFloat = 1e-3
    v0: NonNegativeFloat | None = None
    kind: Literal["adam", "yogi", "adagrad"] = "adam"
    roles = frozenset({"server"})

    @property
    def server(self) -> Mapping[str, Initializer]:  # type: ignore[override]
        v0 = self.tau**2 if self.v0 is None else self.v0
        return {"m": zeros, "v": lambda first, now: torch.full_like(now, v0)}

    def update(self, delta: Tensor, mean: Any, v: View) -> Tensor:
        square = delta.square()
        v.m = self.beta1 * v.m + (1 - self.beta1) * delta
        if self.kind == "adam":
            v.v = self.beta2 * v.v + (1 - self.beta2) * square
        elif self.kind == "yogi":
            v.v = v.v - (1 - self.beta2) * square * torch.sign(v.v - square)
        else:
            v.v = v.v + square
        return v.m / (v.v.sqrt() + self.tau)


@dataclass(frozen=True)
class MaxStabilized(AdaptiveServer):
    """FedAMS: the server moves by `m / (sqrt(s) + tau)`, `s <- max(s, v, floor)`.

    s begins at 0. `floor` or `tau` must be positive.
    """

    tau: NonNegativeFloat = 0.0
    v0: NonNegativeFloat | None = 0.0
    floor: NonNegativeFloat = field(default=1e-3, kw_only=True)

    @property
    def server(self) -> Mapping[str, Initializer]:  # type: ignore[override]
        return {**super().server, "s": zeros}

    def update(self, delta: Tensor, mean: Any, v: View) -> Tensor:
        super().update(delta, mean, v)
        v.s = torch.maximum(v.s, v.v).clamp(min=self.floor)
        return v.m / (v.s.sqrt() + self.tau)


@dataclass(frozen=True)
class Extrapolation(Term):
    """FedExP: the update times `mean ||d_i||^2 / (2 (||mean d_i||^2 + eps))`, or 1 if that is less.

    d_i are the clients' moves. The means are weighted as the update is, which may be another vector
    than mean d_i.
    """

    eps: PositiveFloat = 1e-3
    roles = frozenset({"server"})

    def report(self, w: Tensor, v: View) -> tuple[Tensor, ...]:
        d = w - v.origin
        return v.weight * d.square().sum(), v.weight * d, v.weight

    def update(self, delta: Tensor, mean: tuple[Tensor, ...], v: View) -> Tensor:
        squares, moves, weight = mean
        length = weighted((moves, weight)).square().sum()
        step = weighted((squares, weight)) / (2 * (length + self.eps))
        return step.clamp(min=1) * delta


@dataclass(frozen=True)
class ReusedMoves(Term):
    """FedVARP: the update `y + mean_S(d_i - y_i)`, in the place of the cohort's mean move.

    y_i is the move of the client's last visit, y the mean of all. Place it before terms that add.
    """

    client = {"y_i": zeros}
    server = {"y": zeros}

    def report(self, w: Tensor, v: View) -> tuple[Tensor, Tensor]:
        old, v.y_i = v.y_i, w - v.origin
        return v.weight * (v.y_i - old), v.weight

    def update(self, delta: Tensor, mean: tuple[Tensor, Tensor], v: View) -> Tensor:
        old, new = v.y, weighted(mean)
        v.y = old + v.participation * new
        return old + new


@dataclass(frozen=True)
class ServerMomentum(Term):
    """FedAvgM: the server moves by `m <- beta m + delta`; `delta + beta m` is Nesterov's."""

    beta: BelowOneFloat = 0.9
    nesterov: bool = field(default=False, kw_only=True)
    server = {"m": zeros}
    roles = frozenset({"server"})

    def update(self, delta: Tensor, mean: Any, v: View) -> Tensor:
        v.m = self.beta * v.m + delta
        return delta + self.beta * v.m if self.nesterov else v.m


@dataclass(frozen=True)
class AcceleratedStart(ServerMomentum):
    """FedACG's accelerated start: `y = w^t + beta m`, with steps along `g + 2 prox (w - y)`."""

    beta: BelowOneFloat = 0.85
    prox: NonNegativeFloat = 0.001
    roles = frozenset({"server", "start"})

    def start(self, w: Tensor, v: View) -> Tensor:
        return w + self.beta * v.m

    def gradient(self, oracle: Oracle, w: Tensor, v: View) -> Tensor:
        return oracle(w) + 2 * self.prox * (w - v.origin)


@dataclass(frozen=True)
class NormalizedAveraging(Term):
    """FedNova: `delta = mean(tau_i) mean((u_i - w^t) / tau_i)`, with lengths tau_i = `v.lr_sum`.

    The path includes momentum and unequal steps. Place it before terms that add to the update.
    """

    def send(self, delta: Tensor, v: View) -> Tensor:
        v.weight = v.weight / v.lr_sum
        return delta

    def report(self, w: Tensor, v: View) -> tuple[Tensor, ...]:
        p = v.weight * v.lr_sum
        return p * v.lr_sum, v.weight, p

    def update(self, delta: Tensor, mean: tuple[Tensor, ...], v: View) -> Tensor:
        path, weight, p = mean  # the mean of p is 1 unless clients were skipped
        return delta * weighted((path, p)) * weighted((weight, p))


@dataclass(frozen=True)
class RelaxedInitialization(Term):
    """FedInit's relaxed start: `w^t + beta (w^t - w_i)`, away from the client's last model w_i.

    Attributes:
        beta: Length of the shift.
        skip_first: Shift nothing at the first visit, where w_i is w^0 otherwise.
        whole: Let the server average models, shifts included. False averages the moves from the
            starts, as released code does.
    """

    beta: NonNegativeFloat = 0.1
    skip_first: bool = False
    whole: bool = False
    roles = frozenset({"start"})

    @property
    def client(self) -> Mapping[str, Initializer]:  # type: ignore[override]
        return {"w_i": received if self.skip_first else initial}

    def start(self, w: Tensor, v: View) -> Tensor:
        return w + self.beta * (w - v.w_i)

    def report(self, w: Tensor, v: View) -> Any:
        v.w_i = v.own
        return (v.weight * (v.origin - v.anchor), v.weight) if self.whole else ()

    def update(self, delta: Tensor, mean: Any, v: View) -> Tensor:
        return delta + weighted(mean) if self.whole else delta
