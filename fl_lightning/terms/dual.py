"""Duals: a running memory h_i of each client's moves, and its mean h on the server."""

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from fl_lightning.core.constraints import FiniteFloat, NonNegativeFloat, PositiveFloat
from fl_lightning.core.oracle import Oracle
from fl_lightning.core.term import Term, View, scalar, zeros


@dataclass(frozen=True)
class DynamicRegularizer(Term):
    """FedDyn's dual: `g + alpha (h_i + w - w^t)`, h_i being the sum of the client's moves.

    The server adds h, the mean of all h_i, to the update. In the paper's letters the dual is
    `-alpha h_i`.

    Attributes:
        alpha: Strength.
        participation: Replaces M/N in the mean; 1 is FedTOGA's Algorithm 1 to the letter.
    """

    alpha: NonNegativeFloat = 0.1
    participation: NonNegativeFloat | None = None
    client = {"h_i": zeros}
    server = {"h": zeros}

    def gradient(self, oracle: Oracle, w: Tensor, v: View) -> Tensor:
        return oracle(w) + self.alpha * (v.h_i + w - v.anchor)

    def report(self, w: Tensor, v: View) -> Tensor:
        v.h_i = v.h_i + w - v.anchor
        return w - v.anchor

    def update(self, delta: Tensor, mean: Tensor, v: View) -> Tensor:
        v.h = v.h + (v.participation if self.participation is None else self.participation) * mean
        return delta + v.h


@dataclass(frozen=True)
class CohortDual(DynamicRegularizer):
    """The same, with the cohort's mean dual: FedSpeed's mean of amended models `u_i + h_i`."""

    server = {}

    def report(self, w: Tensor, v: View) -> Tensor:
        super().report(w, v)
        return v.h_i

    def update(self, delta: Tensor, mean: Tensor, v: View) -> Tensor:
        return delta + mean


@dataclass(frozen=True)
class LinearDual(DynamicRegularizer):
    """The dual without a pull to the received model: `g + alpha h_i`."""

    def gradient(self, oracle: Oracle, w: Tensor, v: View) -> Tensor:
        return oracle(w) + self.alpha * v.h_i


@dataclass(frozen=True)
class CohortLinearDual(CohortDual, LinearDual):
    """The same, with the cohort's mean dual."""


@dataclass(frozen=True)
class StartDual(DynamicRegularizer):
    """FedGloSS' dual of the moves from where a client starts: `g + alpha (h_i + w - start)`."""

    def gradient(self, oracle: Oracle, w: Tensor, v: View) -> Tensor:
        return oracle(w) + self.alpha * (v.h_i + w - v.origin)

    def report(self, w: Tensor, v: View) -> Tensor:
        v.h_i = v.h_i + w - v.origin
        return w - v.origin


@dataclass(frozen=True)
class FedVRADual(DynamicRegularizer):
    """FedVRA's dual step a and aggregation step d, reconstructed.

    `h_i <- h_i + a (u_i - w^t)`, and `w <- w + (d/N) sum_S (u_i - w) + h`; d None is N/M. Where the
    loss is flat, a visit multiplies h_i by `1 - a gamma_K`, with `gamma_K = 1 - (1 - lr alpha)^K`.
    """

    a: NonNegativeFloat = 1.0
    d: PositiveFloat | None = None

    def report(self, w: Tensor, v: View) -> Tensor:
        v.h_i = v.h_i + self.a * (w - v.anchor)
        return self.a * (w - v.anchor)

    def update(self, delta: Tensor, mean: Tensor, v: View) -> Tensor:
        return super().update(
            delta if self.d is None else self.d * v.participation * delta, mean, v
        )

    def summary_lines(self, first: View, last: View) -> Iterator[str]:
        lr = first.lr_sum / first.steps
        gamma = float(1 - (1 - lr * self.alpha) ** first.steps)
        if abs(1 - self.a * gamma) > 1:
            yield (
                f"the dual step a = {self.a:g} is unstable: a visit multiplies the duals by "
                f"{1 - self.a * gamma:.2f} where the loss is flat; choose a below {2 / gamma:.3g}"
            )


@dataclass(frozen=True)
class SSG(Term):
    """FedSSG's gated memories: `g + alpha h_i + d - d_i`.

    A visit counts, then `D = (count / expected + offset) (u_i - w^t)`, `h_i <- h_i + D` and
    `d_i <- d_i - d - D / (K eta_0)`; h and d are the means of all clients.
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
        D, old = self._gate(v) * (w - v.anchor), v.d_i
        v.h_i, v.d_i = v.h_i + D, v.d_i - v.d - D / v.base_lr_sum
        return D, v.d_i - old

    def update(self, delta: Tensor, mean: tuple[Tensor, ...], v: View) -> Tensor:
        v.h, v.d = v.h + v.participation * mean[0], v.d + v.participation * mean[1]
        return delta + v.h

    def _gate(self, v: View) -> Tensor:
        """Visits so far over those expected in the whole run, 0 to about 1, plus the offset."""
        return v.count / (v.inclusion_probability * v.rounds) + self.offset
