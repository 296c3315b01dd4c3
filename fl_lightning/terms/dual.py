"""Duals: a running memory h_i of each client's moves, and its mean h on the server."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from fl_lightning.core.constraints import NonNegativeFloat, PositiveFloat
from fl_lightning.core.oracle import Oracle
from fl_lightning.core.term import Initializer, Term, View, initial, zeros
from fl_lightning.terms.server import weighted


@dataclass(frozen=True)
class DynamicRegularizer(Term):
    """FedDyn's dual: `g + alpha (h_i + w - w^t)`, h_i being the sum of the client's moves.

    The server adds h, the mean of all h_i, to the update. In the paper the dual is `-alpha h_i`.

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
        step = 1.0 if self.d is None else self.d * v.participation
        return super().update(step * delta, mean, v)

    def summary_lines(self, first: View, last: View) -> Iterator[str]:
        lr = first.lr_sum / first.steps
        gamma = float(1 - (1 - lr * self.alpha) ** first.steps)
        if abs(1 - self.a * gamma) > 1:
            yield (
                f"the dual step a = {self.a:g} is unstable: a visit multiplies the duals by "
                f"{1 - self.a * gamma:.2f} where the loss is flat; choose a below {2 / gamma:.3g}"
            )


@dataclass(frozen=True)
class AugmentedModel(Term):
    """FedADMM: a client sends the change of w_i + h_i, its last model and its dual over rho.

    Its steps are FedDyn's, `g + rho (h_i + w - w^t)`, and h_i grows by `w_i - w^t`. The server adds
    eta times the mean change.

    Attributes:
        rho: Strength.
        eta: The server's step; None is M/N, which keeps w^t the mean of w_i + h_i of all clients.
        memory: What w_i of the last visit is for: the change, or also the start of the next visit.
            Without it the change counts from w^t.
    """

    rho: NonNegativeFloat = 0.01
    eta: NonNegativeFloat | None = None
    memory: Literal["change", "start", "none"] = "change"

    @property
    def roles(self) -> frozenset[str]:  # type: ignore[override]
        return frozenset({"start"} if self.memory == "start" else ())

    @property
    def client(self) -> Mapping[str, Initializer]:  # type: ignore[override]
        return {"h_i": zeros} | ({} if self.memory == "none" else {"w_i": initial})

    def start(self, w: Tensor, v: View) -> Tensor:
        return v.w_i if self.memory == "start" else w

    def gradient(self, oracle: Oracle, w: Tensor, v: View) -> Tensor:
        return oracle(w) + self.rho * (v.h_i + w - v.anchor)

    def report(self, w: Tensor, v: View) -> tuple[Tensor, Tensor]:
        change = move = w - v.anchor
        v.h_i = v.h_i + move
        if self.memory != "none":
            change, v.w_i = w - v.w_i, w
        return v.weight * (change + move), v.weight

    def update(self, delta: Tensor, mean: tuple[Tensor, Tensor], v: View) -> Tensor:
        return (v.participation if self.eta is None else self.eta) * weighted(mean)
