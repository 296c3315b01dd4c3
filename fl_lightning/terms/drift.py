"""Drift correction: what is added to the local gradient, and the duals and variates behind it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from fl_lightning.oracle import Oracle
from fl_lightning.term import Term, zeros


@dataclass(frozen=True)
class Proximal(Term):
    """`g + mu (w - w^t)`. FedProx: Li et al., MLSys 2020."""

    mu: float = 0.1

    def gradient(self, oracle: Oracle, w: Tensor, v: Any) -> Tensor:
        return oracle(w) + self.mu * (w - v.anchor)


def one(v: Any) -> float:
    """Every client counts the same."""
    return 1.0


def om(v: Any) -> Tensor:
    """om_i = N n_i / n: the client's samples over the mean of all clients."""
    return v.size


@dataclass(frozen=True)
class ControlVariate(Term):
    """`g + k (c - c_i)`, with `c_i <- c_i - c + (w^t - u_i) / span`.

    SCAFFOLD, option II: Karimireddy et al., ICML 2020. `length` fixes the divisor K eta for everybody instead of the
    visit's own; `scale` weighs c by the client's size in the step, as FedSSG's and FedDC's code does, and `kept` in
    c_i's update (SCAFFOLD of that code: `one`).
    """

    k: float = 1.0
    length: float | None = None
    scale: Callable[[Any], Tensor | float] = one
    kept: Callable[[Any], Tensor | float] | None = None
    client = {"c_i": zeros}
    server = {"c": zeros}

    def gradient(self, oracle: Oracle, w: Tensor, v: Any) -> Tensor:
        return oracle(w) + self.k * (v.c / self.scale(v) - v.c_i)

    def report(self, w: Tensor, v: Any) -> Tensor:
        old = v.c_i
        v.c_i = v.c_i - v.c / (self.kept or self.scale)(v) + (v.origin - w) / (self.length or v.span)
        return self.scale(v) * (v.c_i - old)

    def update(self, delta: Tensor, mean: Tensor, v: Any) -> Tensor:
        v.c = v.c + v.share * mean
        return delta


@dataclass(frozen=True)
class DynamicRegularizer(Term):
    """`g + alpha (h_i + w - w^t)`, with h_i the sum of this client's moves and h their mean over all clients.

    FedDyn: Acar et al., ICLR 2021, in displacements (the paper's dual is `-alpha h_i`); the server adds the new h.
    `scale` divides alpha by the client's size. `share` replaces M/N in the mean: 1 averages over the cohort, the letter
    of FedTOGA's Algorithm 1.
    """

    alpha: float = 0.1
    scale: Callable[[Any], Tensor | float] = one
    share: float | None = None
    client = {"h_i": zeros}
    server = {"h": zeros}

    def gradient(self, oracle: Oracle, w: Tensor, v: Any) -> Tensor:
        return oracle(w) + self.alpha / self.scale(v) * (v.h_i + w - v.anchor)

    def report(self, w: Tensor, v: Any) -> Tensor:
        v.h_i = v.h_i + w - v.anchor
        return w - v.anchor

    def update(self, delta: Tensor, mean: Tensor, v: Any) -> Tensor:
        v.h = v.h + (v.share if self.share is None else self.share) * mean
        return delta + v.h


@dataclass(frozen=True)
class CohortDual(DynamicRegularizer):
    """The same, but the server adds the mean dual of the cohort: the mean of FedSpeed's amended models u_i + h_i."""

    server = {}

    def report(self, w: Tensor, v: Any) -> Tensor:
        super().report(w, v)
        return v.h_i

    def update(self, delta: Tensor, mean: Tensor, v: Any) -> Tensor:
        return delta + mean


@dataclass(frozen=True)
class ClientMomentum(Term):
    """`alpha g + (1 - alpha) m`, with m the cohort's last mean gradient. FedCM: Xu et al., arXiv 2106.10874.

    `gain` replaces alpha in front of g (1 in FedLESAM's MoFedSAM).
    """

    alpha: float = 0.1
    gain: float | None = None
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
    """Scale the whole direction down to norm `max_norm`; outermost, so that weight decay stays outside.

    FL-Simulator and its kin clip prox terms by half (`-lam w^t` inside, `+lam w` as weight decay outside); here they
    are clipped whole.
    """

    max_norm: float = 10.0

    def __post_init__(self) -> None:
        if not self.max_norm > 0:
            raise ValueError(f"clipping scales a direction down to a positive norm, not to {self.max_norm}")

    def gradient(self, oracle: Oracle, w: Tensor, v: Any) -> Tensor:
        g = oracle(w)
        return g * (self.max_norm / (g.norm() + 1e-6)).clamp(max=1.0)
