"""Terms that give each client a personal model."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fl_lightning.core.constraints import NonNegativeFloat
from fl_lightning.core.oracle import Oracle
from fl_lightning.core.term import Term, View, initial


@dataclass(frozen=True)
class LocalOnly(Term):
    """Local training alone: every client continues with its own model w_i, the global one stays."""

    client = {"w_i": initial}
    roles = frozenset({"start", "server"})

    def start(self, w: Tensor, v: View) -> Tensor:
        return v.w_i

    def report(self, w: Tensor, v: View) -> Any:
        v.w_i = w
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
