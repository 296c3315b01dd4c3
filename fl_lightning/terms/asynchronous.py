"""Clients that finish late, as under an asynchronous server."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fl_lightning.core.constraints import NonNegativeFloat, PositiveInt
from fl_lightning.core.device import to_device_async
from fl_lightning.core.oracle import Oracle
from fl_lightning.core.term import Initializer, OfClients, Term, View
from fl_lightning.terms.server import weighted


def staleness_of(v: View) -> Tensor:
    """The staleness that is drawn for the client, 0-dim."""
    return v.stalenesses.index_select(0, v.client[None])[0]


def discount(v: View, decay: float) -> Tensor:
    """What a stale move counts."""
    return (1 + staleness_of(v)) ** -decay


@dataclass(frozen=True)
class Stale(Term):
    """Each client starts from the model of some rounds ago, its staleness, as if it finished late.

    Staleness is drawn anew in each round, uniformly from 0 to `max_staleness`. Before the first
    round the model was w^0. A move counts `(1 + staleness)^-decay`; the sum is divided by M.

    Attributes:
        max_staleness: The largest staleness, in rounds.
        decay: How much less a stale move counts.
    """

    max_staleness: PositiveInt = 4
    decay: NonNegativeFloat = 0.5
    roles = frozenset({"start"})
    logs = ("staleness",)

    @property
    def server(self) -> Mapping[str, Initializer]:  # type: ignore[override]
        none = OfClients(lambda first, clients: first.new_zeros(clients))
        return {"past": lambda first, now: now.repeat(self.max_staleness, 1), "stalenesses": none}

    def start(self, w: Tensor, v: View) -> Tensor:
        staleness = staleness_of(v)
        v.log("staleness", staleness)
        then = v.past.index_select(0, (staleness - 1).clamp(min=0).long()[None])[0]
        return torch.where(staleness > 0, then, w)

    def send(self, delta: Tensor, v: View) -> Tensor:
        v.weight = v.weight * discount(v, self.decay)
        return delta

    def report(self, w: Tensor, v: View) -> tuple[Tensor, ...]:
        return v.weight, v.weight / discount(v, self.decay)

    def update(self, delta: Tensor, mean: tuple[Tensor, ...], v: View) -> Tensor:
        v.past = torch.cat([v.anchor[None], v.past[:-1]])
        drawn = torch.randint(self.max_staleness + 1, v.stalenesses.shape)  # alike on every device
        v.stalenesses = to_device_async(drawn, v.stalenesses.device).to(v.stalenesses)
        return weighted((mean[0], mean[1])) * delta


@dataclass(frozen=True)
class Mixing(Stale):
    """FedAsync: `w <- (1 - s) w + s u_i`, s being the discount, and steps along `g + rho (w - o)`.

    u_i is a whole model, so that a late client also pulls the server back to its start o.

    Attributes:
        rho: Strength of the pull of a visit to its start.
    """

    rho: NonNegativeFloat = 0.005

    def gradient(self, oracle: Oracle, w: Tensor, v: View) -> Tensor:
        return oracle(w) + self.rho * (w - v.origin)

    def report(self, w: Tensor, v: View) -> tuple[Tensor, ...]:
        return *super().report(w, v), v.weight * v.origin

    def update(self, delta: Tensor, mean: tuple[Tensor, ...], v: View) -> Tensor:
        starts, discount = weighted((mean[2], mean[1])), weighted((mean[0], mean[1]))
        return super().update(delta, mean, v) + starts - discount * v.anchor
