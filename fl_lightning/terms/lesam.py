"""Perturbations found once a visit, from models that a client has seen: one pass a step."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from fl_lightning.core.oracle import Oracle
from fl_lightning.core.term import Initializer, View, initial, zeros
from fl_lightning.core.vector import unit
from fl_lightning.terms.perturb import Perturbation


@dataclass(frozen=True)
class LESAM(Perturbation):
    """A perturbation back to the model o_i received at the last visit: `e = rho unit(o_i - w^t)`.

    `old` is o_i at the first visit: `initial` (w^0) or `received` (no perturbation).
    """

    old: Initializer = initial
    local = {"e": zeros}

    @property
    def client(self) -> Mapping[str, Initializer]:  # type: ignore[override]
        return {"o_i": self.old}

    def start(self, w: Tensor, v: View) -> Tensor:
        v.e, v.o_i = self.rho * unit(v.o_i - v.anchor, self.eps), v.anchor
        return w

    def gradient(self, oracle: Oracle, w: Tensor, v: View) -> Tensor:
        return oracle(w + v.e)


@dataclass(frozen=True)
class LastRound(Perturbation):
    """A perturbation against the global model's last move: `e = -rho G / ||G||`, G = w^t - w^(t-1).

    Equals `LESAM` under full participation. FedLESAM's code means to divide G by the sum of its
    parameters' norms, but shifts all entries of tensor k by the k-th coordinate of G.
    """

    shape: Literal["norm", "sum_of_norms", "first_coordinates"] = "norm"
    server = {"last": initial}
    local = {"e": zeros}

    def start(self, w: Tensor, v: View) -> Tensor:
        G, sizes = v.anchor - v.last, v.layout.sizes
        if self.shape == "norm":
            direction = unit(G, self.eps)
        elif self.shape == "sum_of_norms":
            norms = torch.stack([part.norm() for part in G.split(sizes)])
            direction = G / (norms.sum() + self.eps)
        else:
            first = G[: len(sizes)] / (G[: len(sizes)].abs().sum() + self.eps)
            direction = torch.cat([x.expand(n) for x, n in zip(first, sizes, strict=True)])
        v.e = -self.rho * direction
        return w

    def gradient(self, oracle: Oracle, w: Tensor, v: View) -> Tensor:
        return oracle(w + v.e)

    def update(self, delta: Tensor, mean: Any, v: View) -> Tensor:
        v.last = v.anchor
        return delta
