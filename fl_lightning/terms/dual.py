"""Duals: a running memory h_i of each client's moves, and its mean h on the server."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fl_lightning.core.constraints import FiniteFloat, NonNegativeFloat, PositiveFloat
from fl_lightning.core.oracle import Oracle
from fl_lightning.core.term import Term, View, scalar, zeros
from fl_lightning.terms.drift import VisitScale, nominal, one


@dataclass(frozen=True)
class DynamicRegularizer(Term):
    """FedDyn's dual: `g + alpha (h_i + w - w^t)`, h_i being the sum of the client's moves.

    The server adds h, the mean of all h_i, to the update. In the paper's letters the dual is
    `-alpha h_i`.

    Attributes:
        alpha: Strength.
        scale: Divides alpha, e.g. by the client's size.
        share: Replaces M/N in the mean; 1 is the letter of FedTOGA's Algorithm 1.
        split: Leave the part `alpha w` to an `UnclippedPull`.

    References:
        Acar et al., ICLR 2021, https://openreview.net/forum?id=B7v4QMR6Z9w
    """

    alpha: NonNegativeFloat = 0.1
    scale: VisitScale = one
    share: NonNegativeFloat | None = None
    split: bool = False
    client = {"h_i": zeros}
    server = {"h": zeros}

    def gradient(self, oracle: Oracle, w: Tensor, v: View) -> Tensor:
        pull = v.h_i - v.anchor if self.split else v.h_i + w - v.anchor
        return oracle(w) + self.alpha / self.scale(v) * pull

    def report(self, w: Tensor, v: View) -> Tensor:
        v.h_i = v.h_i + w - v.anchor
        return w - v.anchor

    def update(self, delta: Tensor, mean: Tensor, v: View) -> Tensor:
        v.h = v.h + (v.share if self.share is None else self.share) * mean
        return delta + v.h


@dataclass(frozen=True)
class CohortDual(DynamicRegularizer):
    """The same, with the cohort's mean dual: FedSpeed's mean of amended models `u_i + h_i`.

    References:
        Sun et al., ICLR 2023, https://arxiv.org/abs/2302.10429
    """

    server = {}

    def report(self, w: Tensor, v: View) -> Tensor:
        super().report(w, v)
        return v.h_i

    def update(self, delta: Tensor, mean: Tensor, v: View) -> Tensor:
        return delta + mean


@dataclass(frozen=True)
class FedVRADual(DynamicRegularizer):
    """FedVRA's dual step a and aggregation step d, reconstructed.

    `h_i <- h_i + a (u_i - w^t)`, and `w <- w + (d/N) sum_S (u_i - w) + h`; d None is N/M.

    Where the loss is flat, K steps move a client by `-gamma_K h_i`, with
    `gamma_K = 1 - (1 - lr alpha)^K`. A visit then multiplies h_i by `1 - a gamma_K`, so a has to
    be below `2 / gamma_K`.

    References:
        Wang et al., AAAI 2023, https://arxiv.org/abs/2212.01519
    """

    a: NonNegativeFloat = 1.0
    d: PositiveFloat | None = None

    def report(self, w: Tensor, v: View) -> Tensor:
        v.h_i = v.h_i + self.a * (w - v.anchor)
        return self.a * (w - v.anchor)

    def update(self, delta: Tensor, mean: Tensor, v: View) -> Tensor:
        return super().update(delta if self.d is None else self.d * v.share * delta, mean, v)

    def notes(self, first: View, last: View) -> Iterator[str]:
        lr, alpha = first.span / first.steps, self.alpha / self.scale(first)
        gamma = float(1 - (1 - lr * alpha) ** first.steps)
        if abs(1 - self.a * gamma) > 1:
            yield (
                f"the dual step a = {self.a:g} is unstable: a visit multiplies the duals by "
                f"{1 - self.a * gamma:.2f} where the loss is flat; choose a below {2 / gamma:.3g}"
            )


def horizon(v: View) -> Tensor:
    """Visits so far over those expected in the whole run: 0 to about 1 (Algorithm 1, code)."""
    return v.count / (v.expected * v.rounds)


def running(v: View) -> Tensor:
    """Visits so far over those expected so far (Eq. 5): about 1, but 1/p_i in the first round."""
    return v.count / (v.expected * (v.round + 1) + 1e-6)


def clipped(ratio: Tensor) -> Tensor:
    """The ratio, at most 1."""
    return ratio.clamp(max=1.0)


def logistic(ratio: Tensor) -> Tensor:
    """A number between 0 and 1, one half at 0."""
    return torch.sigmoid(ratio)


def identity(ratio: Tensor) -> Tensor:
    """The ratio itself."""
    return ratio


def inner_product(w: Tensor, v: View) -> Tensor:
    """The gradient of `<w, h_i>`: the appendix and the code."""
    return v.h_i


def proximal(w: Tensor, v: View) -> Tensor:
    """The gradient of `1/2 ||w - (w^t - h_i)||^2`: the main text, and FedDC."""
    return v.h_i + w - v.anchor


def over_cohort(delta: Tensor, drift: Tensor, v: View) -> Tensor:
    """The cohort's mean of model plus memory (Eq. 28)."""
    return delta + drift


def over_all_clients(delta: Tensor, drift: Tensor, v: View) -> Tensor:
    """The cohort's sum of model plus memory over N (Algorithm 1): shrinks the model by M/N."""
    return v.share * (v.anchor + delta + drift) - v.anchor


@dataclass(frozen=True)
class SSG(Term):
    """FedSSG's gated memories: `g + alpha h_i + d - d_i`.

    A visit counts, then `D = (count / expected + offset) (u_i - w^t)`, `h_i <- h_i + D` and
    `d_i <- d_i - d - D / (K eta_0)`; h and d are the means of all clients.

    References:
        FedSSG, 2025, https://arxiv.org/abs/2509.13895
    """

    alpha: NonNegativeFloat = 0.05
    offset: FiniteFloat = 1.0
    client = {"h_i": zeros, "d_i": zeros, "count": scalar}
    server = {"h": zeros, "d": zeros}

    def start(self, w: Tensor, v: View) -> Tensor:
        v.count = v.count + 1
        return w

    def gradient(self, oracle: Oracle, w: Tensor, v: View) -> Tensor:
        return oracle(w) + (v.d - v.d_i) + self.alpha * v.h_i

    def report(self, w: Tensor, v: View) -> tuple[Tensor, ...]:
        D, old = (horizon(v) + self.offset) * (w - v.anchor), v.d_i
        v.h_i, v.d_i = v.h_i + D, v.d_i - v.d - D / v.nominal
        return D, v.d_i - old

    def update(self, delta: Tensor, mean: tuple[Tensor, ...], v: View) -> Tensor:
        v.h, v.d = v.h + v.share * mean[0], v.d + v.share * mean[1]
        return delta + v.h


@dataclass(frozen=True)
class ReleasedSSG(SSG):
    """FedSSG with the choices in which its main text, appendix and released code differ.

    Attributes:
        gate: Visits over those expected; None for no gate.
        shape: Map of that ratio.
        align: Gradient of the alignment; None for none.
        gated_alignment: Multiply the alignment by the gate (main text).
        gated_variate: Let d_i learn from D, not from the plain move.
        correction: Coefficient of the gradient correction.
        length: Divisor of a move.
        scale: Divisor of alpha and d, and weight of d_i in d; `om` in the code.
        amend: The server's move, from the mean move and the cohort's mean memory; None adds the
            mean memory of all clients, as the code does.
    """

    gate: Callable[[View], Tensor] | None = horizon
    shape: Callable[[Tensor], Tensor] = identity
    align: Callable[[Tensor, View], Tensor] | None = inner_product
    gated_alignment: bool = False
    gated_variate: bool = True
    correction: NonNegativeFloat = 1.0
    length: VisitScale = nominal
    scale: VisitScale = one
    amend: Callable[[Tensor, Tensor, View], Tensor] | None = None

    def gradient(self, oracle: Oracle, w: Tensor, v: View) -> Tensor:
        g = oracle(w) + self.correction * (v.d / self.scale(v) - v.d_i)
        if self.align is None:
            return g
        alpha = self.alpha / self.scale(v) * (self._opening(v) if self.gated_alignment else 1.0)
        return g + alpha * self.align(w, v)

    def report(self, w: Tensor, v: View) -> tuple[Tensor, ...]:
        D, old = self._opening(v) * (w - v.anchor), v.d_i
        learnt = D if self.gated_variate else w - v.anchor
        v.h_i, v.d_i = v.h_i + D, v.d_i - v.d / self.scale(v) - learnt / self.length(v)
        message = D, self.scale(v) * (v.d_i - old)
        return message if self.amend is None else (*message, v.h_i)

    def update(self, delta: Tensor, mean: Any, v: View) -> Tensor:
        moved = super().update(delta, mean, v)
        return moved if self.amend is None else self.amend(delta, mean[2], v)

    def _opening(self, v: View) -> Tensor | float:
        return 1.0 if self.gate is None else self.shape(self.gate(v)) + self.offset
