"""Perturbations found once a visit, from models that a client has seen: one pass a step."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from fl_lightning.core.oracle import Oracle
from fl_lightning.core.term import Initializer, View, initial, received, zeros
from fl_lightning.terms.perturb import Perturbation


@dataclass(frozen=True)
class LESAM(Perturbation):
    """A perturbation back to the model o_i received at the last visit: `e = rho unit(o_i - w^t)`.

    At the first visit o_i is w^0; with `skip_first` nothing is perturbed there.
    """

    skip_first: bool = False
    local = {"e": zeros}

    @property
    def client(self) -> Mapping[str, Initializer]:  # type: ignore[override]
        return {"o_i": received if self.skip_first else initial}

    def start(self, w: Tensor, v: View) -> Tensor:
        v.e, v.o_i = self.rho * self.direction(v.o_i - v.anchor, v), v.anchor
        return w

    def gradient(self, oracle: Oracle, w: Tensor, v: View) -> Tensor:
        return oracle(w + v.e)


@dataclass(frozen=True)
class LastRound(Perturbation):
    """A perturbation against the global model's last move: `e = -rho G / ||G||`, G = w^t - w^(t-1).

    Equals `LESAM` under full participation.
    """

    server = {"last": initial}
    local = {"e": zeros}

    def start(self, w: Tensor, v: View) -> Tensor:
        v.e = -self.rho * self.direction(v.anchor - v.last, v)
        return w

    def gradient(self, oracle: Oracle, w: Tensor, v: View) -> Tensor:
        return oracle(w + v.e)

    def update(self, delta: Tensor, mean: Any, v: View) -> Tensor:
        v.last = v.anchor
        return delta
