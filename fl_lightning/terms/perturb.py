"""Perturbations: where the gradient is taken."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fl_lightning.oracle import Oracle
from fl_lightning.term import Begin, Term, initial, zeros
from fl_lightning.vector import Layout, unit


def _check_radius(rho: float) -> None:
    if not rho >= 0:
        raise ValueError(f"rho is the radius of a perturbation, zero or more, not {rho}")


@dataclass(frozen=True)
class SAM(Term):
    """`g(w + rho unit(g(w)))`: two passes on the same batch. Foret et al., ICLR 2021; FedSAM: Qu et al., ICML 2022."""

    rho: float = 0.05
    eps: float = 1e-12

    def __post_init__(self) -> None:
        _check_radius(self.rho)

    def gradient(self, oracle: Oracle, w: Tensor, v: Any) -> Tensor:
        return oracle(w + self.rho * unit(oracle(w), self.eps))


@dataclass(frozen=True)
class ASAM(Term):
    """SAM in a ball scaled by `T = |w| + eta`: `e = rho T^2 g / ||T g||`. Kwon et al., ICML 2021."""

    rho: float = 0.5
    eta: float = 0.01
    eps: float = 1e-12

    def __post_init__(self) -> None:
        _check_radius(self.rho)

    def gradient(self, oracle: Oracle, w: Tensor, v: Any) -> Tensor:
        T, g = w.abs() + self.eta, oracle(w)
        return oracle(w + self.rho * T.square() * g / ((T * g).norm() + self.eps))


@dataclass(frozen=True)
class LESAM(Term):
    """One perturbation a visit, back to the model o_i that this client received last: `e = rho unit(o_i - w^t)`.

    Fan et al., ICML 2024, Eq. 3. `old` is o_i at the first visit: `initial` (w^0) or `received` (no perturbation).
    """

    rho: float = 0.05
    old: Begin = initial
    eps: float = 1e-12
    local = {"e": zeros}

    def __post_init__(self) -> None:
        _check_radius(self.rho)

    @property
    def client(self) -> Mapping[str, Begin]:  # type: ignore[override]
        return {"o_i": self.old}

    def start(self, w: Tensor, v: Any) -> Tensor:
        v.e, v.o_i = self.rho * unit(v.o_i - v.anchor, self.eps), v.anchor
        return w

    def gradient(self, oracle: Oracle, w: Tensor, v: Any) -> Tensor:
        return oracle(w + v.e)


def by_global_norm(layout: Layout, G: Tensor, eps: float) -> Tensor:
    """G over its L2 norm."""
    return unit(G, eps)


def by_sum_of_norms(layout: Layout, G: Tensor, eps: float) -> Tensor:
    """G over the sum of its parameters' L2 norms, which is larger: what FedLESAM's code means to do."""
    norms = torch.stack([part.norm() for part in layout.split(G)])
    return G / (norms.sum() + eps)


def by_first_coordinates(layout: Layout, G: Tensor, eps: float) -> Tensor:
    """What FedLESAM's code does: tensor k is shifted, all its entries alike, by the k-th coordinate of G."""
    first = G[: len(layout.sizes)] / (G[: len(layout.sizes)].abs().sum() + eps)
    return torch.cat([x.expand(size) for x, size in zip(first, layout.sizes, strict=True)])


@dataclass(frozen=True)
class LastRound(Term):
    """One perturbation for everybody, against the global model's last move G = w^t - w^(t-1): `e = -rho G/||G||`.

    FedLESAM as its code means it; equals `LESAM` under full participation. `shape` says how G is normalised.
    """

    rho: float = 0.05
    shape: Callable[[Layout, Tensor, float], Tensor] = by_global_norm
    eps: float = 1e-12
    server = {"last": initial}
    local = {"e": zeros}

    def __post_init__(self) -> None:
        _check_radius(self.rho)

    def start(self, w: Tensor, v: Any) -> Tensor:
        v.e = -self.rho * self.shape(v.layout, v.anchor - v.last, self.eps)
        return w

    def gradient(self, oracle: Oracle, w: Tensor, v: Any) -> Tensor:
        return oracle(w + v.e)

    def update(self, delta: Tensor, mean: Any, v: Any) -> Tensor:
        v.last = v.anchor
        return delta


def own(oracle: Oracle, w: Tensor, v: Any) -> Tensor:
    """Ascend along the own gradient."""
    return oracle(w)


def neighbour(oracle: Oracle, w: Tensor, v: Any) -> Tensor:
    """Ascend along the previous perturbed gradient R: saves one of the two passes."""
    return v.R


def fusion(oracle: Oracle, w: Tensor, v: Any) -> Tensor:
    """Ascend along the own gradient plus the previous perturbed one."""
    return oracle(w) + v.R


def per_step(v: Any) -> Tensor:
    """Over the number of local steps K: the letter of FedTOGA's proofs."""
    return v.steps


def per_epoch(v: Any) -> Tensor:
    """Over the number of local epochs: the K of FedTOGA's experiments."""
    return v.epochs


def per_length(v: Any) -> Tensor:
    """Over the length of the path, K eta: an estimate of the global gradient, as FedCM's."""
    return v.span


@dataclass(frozen=True)
class TOGA(Term):
    """Perturb along `ascent + kappa Delta`, descend along `g(w + e) + beta Delta`; Delta: the last mean movement.

    FedTOGA (arXiv 2408.14144), Algorithm 1, without its dual. `Delta = mean_S (w^t - u_i) / per(v)`. R is the previous
    perturbed gradient, zero at the start of a visit unless it is carried over from the client's last one.
    """

    rho: float = 0.1
    kappa: float = 1.0
    beta: float = 0.8
    ascent: Callable[[Oracle, Tensor, Any], Tensor] = own
    per: Callable[[Any], Tensor] = per_step
    carry: bool = False
    eps: float = 1e-7
    server = {"Delta": zeros}

    def __post_init__(self) -> None:
        _check_radius(self.rho)

    @property
    def client(self) -> Mapping[str, Begin]:  # type: ignore[override]
        return {"R": zeros} if self.carry else {}

    @property
    def local(self) -> Mapping[str, Begin]:  # type: ignore[override]
        return {} if self.carry else {"R": zeros}

    def gradient(self, oracle: Oracle, w: Tensor, v: Any) -> Tensor:
        e = self.rho * unit(self.ascent(oracle, w, v) + self.kappa * v.Delta, self.eps)
        v.R = oracle(w + e)
        return v.R + self.beta * v.Delta

    def report(self, w: Tensor, v: Any) -> Tensor:
        return (v.origin - w) / self.per(v)

    def update(self, delta: Tensor, mean: Tensor, v: Any) -> Tensor:
        v.Delta = mean
        return delta
