"""What the server does with the mean update."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fl_lightning.term import Begin, Term, zeros


@dataclass(frozen=True)
class Adaptive(Term):
    """FedAdam (Reddi et al., ICLR 2021, Algorithm 2): `m / (sqrt(v) + tau)`, moments of the mean update.

    A term and not `torch.optim.Adam`, which corrects the bias and cannot begin at `v0` (tau^2 in the paper).
    """

    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3
    v0: float = 1e-6

    @property
    def server(self) -> Mapping[str, Begin]:  # type: ignore[override]
        return {"m": zeros, "v": lambda first, now: torch.full_like(now, self.v0)}

    def update(self, delta: Tensor, mean: Any, v: Any) -> Tensor:
        v.m = self.beta1 * v.m + (1 - self.beta1) * delta
        v.v = self.beta2 * v.v + (1 - self.beta2) * delta.square()
        return v.m / (v.v.sqrt() + self.tau)
