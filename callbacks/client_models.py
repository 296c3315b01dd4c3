"""Means of clients' models, to be scored besides the server's model."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from fl_lightning.core.term import Initializer, Term, View, initial
from fl_lightning.terms.server import weighted

Model = Literal["cohort", "clients"]
"""The mean of the cohort's models, or of the last models of all clients."""


@dataclass(frozen=True)
class ClientModels(Term):
    """Keeps means of the clients' last models u_i; it trains nothing.

    `cohort` is the mean over the last cohort with the method's weights. `clients` is the plain mean
    over all clients; those that were never visited count as w^0. FedSSG's repository scores both
    (https://arxiv.org/abs/2509.13895). The term's traffic does not count in the method's cost.
    """

    models: tuple[Model, ...] = ("cohort", "clients")
    roles = frozenset({"measure"})

    @property
    def client(self) -> Mapping[str, Initializer]:  # type: ignore[override]
        return {"u_i": initial} if "clients" in self.models else {}

    @property
    def server(self) -> Mapping[str, Initializer]:  # type: ignore[override]
        return {f"mean_{name}": initial for name in self.models}

    def report(self, w: Tensor, v: View) -> tuple[Tensor, ...]:
        message: tuple[Tensor, ...] = ()
        if "cohort" in self.models:
            message = v.weight * (w - v.anchor), v.weight
        if "clients" in self.models:
            message, v.u_i = (*message, w - v.u_i), w
        return message

    def update(self, delta: Tensor, mean: tuple[Tensor, ...], v: View) -> Tensor:
        if "cohort" in self.models:
            v.mean_cohort = v.anchor + weighted(mean[:2])
        if "clients" in self.models:
            v.mean_clients = v.mean_clients + v.participation * mean[-1]
        return delta
