"""Fairness: terms that weigh clients by their losses."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fl_lightning.core.constraints import NonNegativeFloat
from fl_lightning.core.oracle import Oracle
from fl_lightning.core.term import OfClients, Term, View, scalar
from fl_lightning.terms.server import weighted


@dataclass(frozen=True)
class ReceivedLoss(Term):
    """F_i, the loss of the received model on the client's samples.

    It is the mean over the batches of the visit, at one forward pass a step.
    """

    local = {"F": scalar}

    def gradient(self, oracle: Oracle, w: Tensor, v: View) -> Tensor:
        v.F = v.F + oracle.loss(v.anchor) / v.steps
        return oracle(w)


@dataclass(frozen=True)
class LossWeight(ReceivedLoss):
    """q-FFL: aggregation weights times F_i^q, so that clients with large losses weigh more."""

    q: NonNegativeFloat = 1.0

    def send(self, delta: Tensor, v: View) -> Tensor:
        v.weight = v.weight * (v.F + 1e-10) ** self.q
        return delta


@dataclass(frozen=True)
class FairStep(LossWeight):
    """q-FedAvg: q-FFL with a step as long as the curvature of its objective admits.

    `w^{t+1} = w^t + sum F_i^q d_i / sum (F_i^q + q F_i^{q-1} L ||d_i||^2)` with the moves
    `d_i = u_i - w^t` and `L = 1 / eta`. This is the paper's rule with `Delta w_i = -L d_i`.
    """

    def report(self, w: Tensor, v: View) -> tuple[Tensor, Tensor]:
        d = w - v.origin
        curvature = self.q * v.steps / v.lr_sum * d.dot(d) / (v.F + 1e-10)
        return v.weight, v.weight * (1 + curvature)

    def update(self, delta: Tensor, mean: tuple[Tensor, Tensor], v: View) -> Tensor:
        return delta * weighted(mean)


@dataclass(frozen=True)
class Agnostic(ReceivedLoss):
    """AFL: weights lambda of all clients that ascend along their losses, on the simplex.

    `lambda <- project(lambda + step F)`. The losses of a cohort count N / M times, so that partial
    participation is right on average. A client counts N lambda_i times its weight.
    """

    step: NonNegativeFloat = 0.1
    server = {"lam": OfClients(lambda w, clients: w.new_full((clients,), 1 / clients))}

    def send(self, delta: Tensor, v: View) -> Tensor:
        v.weight = v.weight * len(v.lam) * (_one_hot(v) * v.lam).sum()
        return delta

    def report(self, w: Tensor, v: View) -> Tensor:
        return _one_hot(v) * v.F

    def update(self, delta: Tensor, mean: Tensor, v: View) -> Tensor:
        v.lam = on_simplex(v.lam + self.step * len(v.lam) * mean)
        return delta


def _one_hot(v: View) -> Tensor:
    """1 in the client's place, (N,)."""
    return (torch.arange(len(v.lam), device=v.lam.device) == v.client).to(v.lam)


def on_simplex(y: Tensor) -> Tensor:
    """The nearest point whose numbers are not negative and add up to 1.

    It is `max(y - tau, 0)`, tau being the largest of `(sum of the k largest numbers - 1) / k`
    (Duchi et al., ICML 2008).
    """
    sums = y.sort(descending=True).values.cumsum(0)
    k = torch.arange(1, len(y) + 1, device=y.device)
    return (y - ((sums - 1) / k).max()).clamp(min=0)
