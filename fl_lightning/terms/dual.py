"""Duals: a running memory h_i of each client's moves, and its mean h on the server."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fl_lightning.core.constraints import FiniteFloat, NonNegativeFloat, PositiveFloat
from fl_lightning.core.oracle import Oracle
from fl_lightning.core.term import Term, scalar, zeros
from fl_lightning.terms.drift import Scale, nominal, om, one


@dataclass(frozen=True)
class DynamicRegularizer(Term):
    """`g + alpha (h_i + w - w^t)`, with h_i the sum of this client's moves and h their mean over all clients.

    FedDyn: Acar et al., ICLR 2021, in displacements (the paper's dual is `-alpha h_i`); the server
        adds the new h.
    `scale` divides alpha by the client's size. `share` replaces M/N in the mean: 1 averages over
    the cohort, the letter of FedTOGA's Algorithm 1. With `split` without `alpha w` (see
    `UnclippedPull`).
    """

    alpha: NonNegativeFloat = 0.1
    scale: Scale = one
    share: NonNegativeFloat | None = None
    split: bool = False
    client = {"h_i": zeros}
    server = {"h": zeros}

    def gradient(self, oracle: Oracle, w: Tensor, v: Any) -> Tensor:
        pull = v.h_i - v.anchor if self.split else v.h_i + w - v.anchor
        return oracle(w) + self.alpha / self.scale(v) * pull

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
class FedVRADual(DynamicRegularizer):
    """FedVRA's dual step `a` and aggregation step `d`, reconstructed (Wang et al., AAAI 2023).

    `h_i <- h_i + a (u_i - w^t)`, and `w <- w + (d/N) sum_S (u_i - w) + h`; d None is N/M, the plain
    mean.
    """

    a: NonNegativeFloat = 1.0
    d: PositiveFloat | None = None

    def report(self, w: Tensor, v: Any) -> Tensor:
        v.h_i = v.h_i + self.a * (w - v.anchor)
        return self.a * (w - v.anchor)

    def update(self, delta: Tensor, mean: Tensor, v: Any) -> Tensor:
        return super().update(delta if self.d is None else self.d * v.share * delta, mean, v)


def horizon(v: Any) -> Tensor:
    """Visits so far over those expected in the whole run: from 0 to about 1 (Algorithm 1, and the code)."""
    return v.count / (v.expected * v.rounds)


def running(v: Any) -> Tensor:
    """Visits so far over those expected so far (Eq. 5): about 1, but N/M at a visit in the first round."""
    return v.count / (v.expected * (v.round + 1) + 1e-6)


def clipped(ratio: Tensor) -> Tensor:
    """Not above 1."""
    return ratio.clamp(max=1.0)


def logistic(ratio: Tensor) -> Tensor:
    """Between 0 and 1, one half at 0."""
    return torch.sigmoid(ratio)


def identity(ratio: Tensor) -> Tensor:
    """As it is."""
    return ratio


def inner_product(w: Tensor, v: Any) -> Tensor:
    """The gradient of `<w, h_i>`: the appendix and the code."""
    return v.h_i


def proximal(w: Tensor, v: Any) -> Tensor:
    """The gradient of `1/2 ||w - (w^t - h_i)||^2`: the main text, and FedDC."""
    return v.h_i + w - v.anchor


def over_cohort(delta: Tensor, drift: Tensor, v: Any) -> Tensor:
    """The cohort's mean of model plus memory (Eq. 28)."""
    return delta + drift


def over_all_clients(delta: Tensor, drift: Tensor, v: Any) -> Tensor:
    """The cohort's sum of model plus memory over N (Algorithm 1's letter): shrinks the model to M/N of itself."""
    return v.share * (v.anchor + delta + drift) - v.anchor


@dataclass(frozen=True)
class SSG(Term):
    """FedSSG (arXiv 2509.13895): FedDC with an inner product, its moves gated by how often the client was drawn.

    `g + alpha_i align(w) + correction (d/om_i - d_i)`; after the visit `D = (shape(gate) + offset)
    (u_i - w^t)`, `h_i <- h_i + D` and `d_i <- d_i - d/om_i - D / length`. Without a gate D is the
    plain move.

    Attributes:
        alpha: Strength of the alignment.
        gate: How often the client was drawn, over the expected; None for no gate.
        shape: A map of that ratio.
        offset: Added to it.
        align: The alignment's gradient; None for none.
        gated_alignment: Multiply the alignment by the gate (main text).
        gated_variate: Let d_i learn from D, not from the plain move.
        correction: Coefficient of the gradient correction.
        length: What a move is divided by for a mean gradient.
        scale: Divides alpha, and d, by the client's size.
        amend: The server's move, given the mean move and the cohort's mean memory; None adds the
            mean memory of all clients, as the code does.
    """

    alpha: NonNegativeFloat = 0.05
    gate: Callable[[Any], Tensor] | None = horizon
    shape: Callable[[Tensor], Tensor] = identity
    offset: FiniteFloat = 1.0
    align: Callable[[Tensor, Any], Tensor] | None = inner_product
    gated_alignment: bool = False
    gated_variate: bool = True
    correction: NonNegativeFloat = 1.0
    length: Scale = nominal
    scale: Scale = om
    amend: Callable[[Tensor, Tensor, Any], Tensor] | None = None
    client = {"h_i": zeros, "d_i": zeros, "count": scalar}
    server = {"h": zeros, "d": zeros}

    def start(self, w: Tensor, v: Any) -> Tensor:
        v.count = v.count + 1
        return w

    def gradient(self, oracle: Oracle, w: Tensor, v: Any) -> Tensor:
        g = oracle(w) + self.correction * (v.d / self.scale(v) - v.d_i)
        if self.align is None:
            return g
        alpha = self.alpha / self.scale(v) * (self._opening(v) if self.gated_alignment else 1.0)
        return g + alpha * self.align(w, v)

    def report(self, w: Tensor, v: Any) -> tuple[Tensor, ...]:
        D, old = self._opening(v) * (w - v.anchor), v.d_i
        learnt = D if self.gated_variate else w - v.anchor
        v.h_i, v.d_i = v.h_i + D, v.d_i - v.d / self.scale(v) - learnt / self.length(v)
        message = D, self.scale(v) * (v.d_i - old)
        return message if self.amend is None else (*message, v.h_i)

    def update(self, delta: Tensor, mean: tuple[Tensor, ...], v: Any) -> Tensor:
        v.h, v.d = v.h + v.share * mean[0], v.d + v.share * mean[1]
        return delta + v.h if self.amend is None else self.amend(delta, mean[2], v)

    def _opening(self, v: Any) -> Tensor | float:
        return 1.0 if self.gate is None else self.shape(self.gate(v)) + self.offset
