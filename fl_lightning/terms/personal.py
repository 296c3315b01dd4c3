"""Clients that make a model their own."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fl_lightning.core.constraints import NonNegativeFloat
from fl_lightning.core.oracle import Oracle
from fl_lightning.core.term import Term, initial


@dataclass(frozen=True)
class LocalOnly(Term):
    """Every client goes on with its own model w_i; nobody sends, nobody receives."""

    client = {"w_i": initial}
    roles = frozenset({"start", "server"})

    def start(self, w: Tensor, v: Any) -> Tensor:
        return v.w_i

    def report(self, w: Tensor, v: Any) -> Any:
        v.w_i = w
        return ()

    def update(self, delta: Tensor, mean: Any, v: Any) -> Tensor:
        return torch.zeros_like(delta)

    def personal(self, w: Tensor, v: Any) -> Tensor:
        return v.w_i


@dataclass(frozen=True)
class FirstOrderMAML(Term):
    """Per-FedAvg, first order (Fallah et al., NeurIPS 2020): `g(w - alpha g(w; one half); the other half)`.

    Each half of the batch is a batch of the paper: it wants batches of twice the size.
    """

    alpha: NonNegativeFloat = 0.01

    def gradient(self, oracle: Oracle, w: Tensor, v: Any) -> Tensor:
        adapt, look = oracle.part(0, 2), oracle.part(1, 2)
        return look(w - self.alpha * adapt(w))
