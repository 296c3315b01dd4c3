"""Terms that give each client a personal model."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fl_lightning.core.constraints import NonNegativeFloat, PositiveInt, UnitInterval
from fl_lightning.core.oracle import Oracle
from fl_lightning.core.term import Initializer, OfLayout, Term, View, initial, received, scalar
from fl_lightning.core.vector import Layout, Part
from fl_lightning.terms.sending import count_sent


@dataclass(frozen=True)
class LocalOnly(Term):
    """Local training alone: every client continues with its own model w_i, the global one stays.

    Clients keep all buffers for themselves, too, such as running statistics.
    """

    client = {"w_i": initial}
    roles = frozenset({"start", "server", "personal", "select", "round"})

    @staticmethod
    def keeps(name: str, layout: Layout) -> bool:
        """The whole model."""
        return True

    def start(self, w: Tensor, v: View) -> Tensor:
        return v.w_i

    def report(self, w: Tensor, v: View) -> Any:
        v.w_i = v.own
        return ()

    def update(self, delta: Tensor, mean: Any, v: View) -> Tensor:
        return torch.zeros_like(delta)

    def personal(self, w: Tensor, v: View) -> Tensor:
        return v.w_i


@dataclass(frozen=True)
class FirstOrderMAML(Term):
    """Per-FedAvg's first-order step: `g(w - alpha g(w; one half of the batch); the other half)`.

    Each half is a batch of the paper, so the batch is twice as large.
    """

    alpha: NonNegativeFloat = 0.01

    def gradient(self, oracle: Oracle, w: Tensor, v: View) -> Tensor:
        adapt, look = oracle.part(0, 2), oracle.part(1, 2)
        return look(w - self.alpha * adapt(w))


@dataclass(frozen=True)
class Personal(Term):
    """A part of the model that each client trains and keeps for itself; only the rest is sent.

    The head is FedPer's part, the body LG-FedAvg's, the normalization layers FedBN's. It begins as
    that of w^0, and stays so in the server's model, which terms that add duals or noise to the mean
    update move nevertheless. `v.anchor` has the server's part. The client also keeps the buffers of
    the part, such as running statistics.

    Attributes:
        part: The part (see `Layout.has`).
    """

    part: Part = "head"
    roles = frozenset({"personal"})

    @property
    def keeps(self) -> Part:  # type: ignore[override]
        return self.part

    @property
    def client(self) -> Mapping[str, Initializer]:  # type: ignore[override]
        return {"w_i": OfLayout(lambda first, now, layout: layout.take(self.part, first).clone())}

    def start(self, w: Tensor, v: View) -> Tensor:
        return v.layout.put(self.part, w, v.w_i)

    def send(self, delta: Tensor, v: View) -> Tensor:
        kept = v.layout.take(self.part, delta)
        v.w_i = v.layout.take(self.part, v.origin) + kept
        count_sent(v.numbers - kept.numel(), v)
        return v.layout.put(self.part, delta, kept.new_zeros(kept.shape))

    def personal(self, w: Tensor, v: View) -> Tensor:
        return v.layout.put(self.part, w, v.w_i)


@dataclass(frozen=True)
class Ditto(Term):
    """A personal model v_i beside the common one, and pulled to it.

    Each local step also does `v_i <- v_i - eta (g(v_i) + lam (v_i - w^t))` on the same batch. eta
    is the mean of the visit's learning rates; under momentum, that of plain steps as long.
    """

    lam: NonNegativeFloat = 1.0
    client = {"v_i": initial}
    roles = frozenset({"personal"})

    def gradient(self, oracle: Oracle, w: Tensor, v: View) -> Tensor:
        g = oracle(w)  # first: running statistics are of the first pass
        pulled = oracle(v.v_i) + self.lam * (v.v_i - v.anchor)
        v.v_i = v.v_i - v.lr_sum / v.steps * pulled
        return g

    def personal(self, w: Tensor, v: View) -> Tensor:
        return v.v_i


@dataclass(frozen=True)
class MoreauEnvelope(Term):
    """pFedMe's step along `lam (w - theta_i)`, the gradient of the loss's Moreau envelope at w.

    theta_i takes plain steps down `f(theta) + mu/2 |theta|^2 + lam/2 |theta - w|^2` on the batch,
    from where the step before left it; a visit begins with `theta_i = w^t`. Its attributes are the
    options of `fl_lightning.algorithms.pfedme`, without the word inner.
    """

    lam: NonNegativeFloat = 15.0
    steps: PositiveInt = 5
    lr: NonNegativeFloat = 0.09
    mu: NonNegativeFloat = 0.0
    client = {"theta_i": received}
    roles = frozenset({"personal"})

    def start(self, w: Tensor, v: View) -> Tensor:
        v.theta_i = w
        return w

    def gradient(self, oracle: Oracle, w: Tensor, v: View) -> Tensor:
        theta = v.theta_i
        for _ in range(self.steps):
            pull = self.lam * (theta - w) + self.mu * theta
            theta = theta - self.lr * (oracle(theta) + pull)
        v.theta_i = theta
        return self.lam * (w - theta)

    def personal(self, w: Tensor, v: View) -> Tensor:
        return v.theta_i


@dataclass(frozen=True)
class Mixture(Term):
    """APFL's own model `alpha v_i + (1 - alpha) w`, of which each client trains the part v_i.

    Each local step also steps v_i down the loss of the mixture on the same batch, at the rate of
    `Ditto`. Its attributes are the options of `fl_lightning.algorithms.apfl`.
    """

    alpha: UnitInterval = 0.5
    adaptive: bool = False
    roles = frozenset({"personal"})

    @property
    def client(self) -> Mapping[str, Initializer]:  # type: ignore[override]
        weight = {"alpha_i": lambda first, now: now.new_full((), self.alpha)}
        return {"v_i": initial} | (weight if self.adaptive else {})

    def gradient(self, oracle: Oracle, w: Tensor, v: View) -> Tensor:
        g, eta, alpha = oracle(w), v.lr_sum / v.steps, self._weight(v)
        own = oracle(self.personal(w, v))
        if self.adaptive:
            v.alpha_i = (alpha - eta * torch.dot(v.v_i - w, own)).clamp(0, 1)
        v.v_i = v.v_i - eta * alpha * own
        return g

    def personal(self, w: Tensor, v: View) -> Tensor:
        alpha = self._weight(v)
        return alpha * v.v_i + (1 - alpha) * w

    def _weight(self, v: View) -> Tensor | float:
        """alpha, or the client's own."""
        return v.alpha_i if self.adaptive else self.alpha


@dataclass(frozen=True)
class Alternate(Term):
    """FedRep's order: a visit trains one part of the model first, then the rest.

    Attributes:
        part: The part that is trained first.
        share: Its share of the local steps; at least one step remains for the rest.
    """

    part: Part = "head"
    share: UnitInterval = 0.5
    local = {"k": scalar}

    def gradient(self, oracle: Oracle, w: Tensor, v: View) -> Tensor:
        mask = v.layout.mask(self.part, w)
        first = (v.k < (self.share * v.steps).round().clamp(max=v.steps - 1)).to(w)
        v.k = v.k + 1
        return oracle(w) * (first * mask + (1 - first) * (1 - mask))

    def summary_lines(self, first: View, last: View) -> Iterator[str]:
        steps = round(float(first.steps))
        if self.share > 0 and min(round(self.share * steps), steps - 1) < 1:
            yield (
                f"visits (local steps: {steps}) are too short to train the {self.part}, which "
                "stays as it was drawn: take more local steps"
            )
