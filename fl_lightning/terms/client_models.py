"""Means of clients' models, to be scored besides the server's model."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from fl_lightning.core.term import Initializer, Term, View, initial

Model = Literal["cohort", "clients"]
"""The mean of the cohort's models, or of the last models of all clients."""


@dataclass(frozen=True)
class ClientModels(Term):
    """Keeps uniform means of the clients' last models u_i; it trains nothing.

    `cohort` is the mean over the cohort, `clients` that over all clients, of which those that were
    never visited count as w^0. FedSSG's repository scores both (https://arxiv.org/abs/2509.13895).
    The term's traffic does not count in the method's cost.

    Attributes:
        models: Which of them.
    """

    models: tuple[Model, ...] = ("cohort", "clients")
    roles = frozenset({"measure"})

    @property
    def client(self) -> Mapping[str, Initializer]:  # type: ignore[override]
        return {"u_i": initial} if "clients" in self.models else {}

    @property
    def server(self) -> Mapping[str, Initializer]:  # type: ignore[override]
        return dict.fromkeys(self.models, initial)

    def report(self, w: Tensor, v: View) -> tuple[Tensor, ...]:
        moves = {"cohort": w - v.anchor}
        if "clients" in self.models:
            moves["clients"], v.u_i = w - v.u_i, w
        return tuple(moves[model] for model in self.models)

    def update(self, delta: Tensor, mean: tuple[Tensor, ...], v: View) -> Tensor:
        for model, move in zip(self.models, mean, strict=True):
            setattr(
                v,
                model,
                v.anchor + move if model == "cohort" else v.clients + v.participation * move,
            )
        return delta
