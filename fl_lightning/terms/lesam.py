"""Perturbations found once a visit, from models that a client has seen: one pass a step."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fl_lightning.core.oracle import Oracle
from fl_lightning.core.term import Initializer, View, initial, zeros
from fl_lightning.core.vector import Layout, unit
from fl_lightning.terms.perturb import Perturbation


@dataclass(frozen=True)
class LESAM(Perturbation):
    """A perturbation back to the model o_i received at the last visit: `e = rho unit(o_i - w^t)`.

    `old` is o_i at the first visit: `initial` (w^0) or `received` (no perturbation).

    References:
        Fan et al., ICML 2024, Eq. 3, https://arxiv.org/abs/2405.18890
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


def by_global_norm(layout: Layout, G: Tensor, eps: float) -> Tensor:
    """G over its L2 norm."""
    return unit(G, eps)


def by_sum_of_norms(layout: Layout, G: Tensor, eps: float) -> Tensor:
    """G over the sum of its parameters' L2 norms: the intent of FedLESAM's code."""
    norms = torch.stack([part.norm() for part in layout.split(G)])
    return G / (norms.sum() + eps)


def by_first_coordinates(layout: Layout, G: Tensor, eps: float) -> Tensor:
    """FedLESAM's code: all entries of tensor k are shifted by the k-th coordinate of G."""
    first = G[: len(layout.sizes)] / (G[: len(layout.sizes)].abs().sum() + eps)
    return torch.cat([x.expand(size) for x, size in zip(first, layout.sizes, strict=True)])


@dataclass(frozen=True)
class LastRound(Perturbation):
    """A perturbation against the global model's last move: `e = -rho G / ||G||`, G = w^t - w^(t-1).

    The intent of FedLESAM's code; equals `LESAM` under full participation. `shape` normalizes G.

    References:
        Fan et al., ICML 2024, https://arxiv.org/abs/2405.18890
    """

    shape: Callable[[Layout, Tensor, float], Tensor] = by_global_norm
    server = {"last": initial}
    local = {"e": zeros}

    def start(self, w: Tensor, v: View) -> Tensor:
        v.e = -self.rho * self.shape(v.layout, v.anchor - v.last, self.eps)
        return w

    def gradient(self, oracle: Oracle, w: Tensor, v: View) -> Tensor:
        return oracle(w + v.e)

    def update(self, delta: Tensor, mean: Any, v: View) -> Tensor:
        v.last = v.anchor
        return delta
