"""Perturbations found anew at every step: where the gradient is taken."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fl_lightning.core.constraints import NonNegativeFloat, UnitInterval
from fl_lightning.core.oracle import Loss, Oracle
from fl_lightning.core.term import Initializer, Term, zeros
from fl_lightning.core.vector import unit
from fl_lightning.errors import TermError
from fl_lightning.terms.wrapper import WrappedTerm


@dataclass(frozen=True)
class Perturbation(Term):
    """A displacement of length `rho`; `eps` is added to the norm that it is divided by."""

    rho: NonNegativeFloat = 0.05
    eps: NonNegativeFloat = field(default=1e-12, kw_only=True)
    roles = frozenset({"perturb"})


def raw(v: Tensor, eps: float) -> Tensor:
    """The vector itself: a perturbation as long as the gradient says."""
    return v


@dataclass(frozen=True)
class SAM(Perturbation):
    """`g(w + rho unit(g(w)))`: two passes on the same batch. Foret et al., ICLR 2021; FedSAM: Qu et al., ICML 2022.

    `mix` of it and `1 - mix` of g(w), in FedSpeed's paper, which may also ascend by `rho g`
    (`ascent=raw`).
    """

    mix: UnitInterval = 1.0
    ascent: Callable[[Tensor, float], Tensor] = unit

    def gradient(self, oracle: Oracle, w: Tensor, v: Any) -> Tensor:
        g = oracle(w)
        return torch.lerp(g, oracle(w + self.rho * self.ascent(g, self.eps)), self.mix)


@dataclass(frozen=True)
class ASAM(Perturbation):
    """SAM in a ball scaled by `T = |w| + eta`: `e = rho T^2 g / ||T g||`. Kwon et al., ICML 2021.

    `scaled`: only the parameters whose names hold this word; the others have T = 1.
    """

    rho: NonNegativeFloat = 0.5
    eta: NonNegativeFloat = 0.01
    scaled: str = ""

    def gradient(self, oracle: Oracle, w: Tensor, v: Any) -> Tensor:
        T, g = w.abs() + self.eta, oracle(w)
        if self.scaled:
            mask = v.layout.where(lambda name: self.scaled in name, w)
            T = mask * T + (1 - mask)
        return oracle(w + self.rho * T.square() * g / ((T * g).norm() + self.eps))


@dataclass(frozen=True)
class SMOO(Perturbation):
    """FedSMOO (Sun et al., ICML 2023): `e = rho unit(g - mu_i - s)`, with a dual mu_i that pulls e to a common s.

    `lag` of the last e is taken off mu_i in the message: 1 in the paper, 0 in the released code.
    """

    rho: NonNegativeFloat = 0.1
    lag: NonNegativeFloat = 1.0
    eps: NonNegativeFloat = field(default=1e-7, kw_only=True)
    client = {"mu_i": zeros}
    server = {"s": zeros}
    local = {"e": zeros}

    def gradient(self, oracle: Oracle, w: Tensor, v: Any) -> Tensor:
        v.e = self.rho * unit(oracle(w) - v.mu_i - v.s, self.eps)
        v.mu_i = v.mu_i + v.e - v.s
        return oracle(w + v.e)

    def report(self, w: Tensor, v: Any) -> Tensor:
        return v.mu_i - self.lag * v.e

    def update(self, delta: Tensor, mean: Tensor, v: Any) -> Tensor:
        v.s = self.rho * unit(mean, self.eps)
        return delta


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
class TOGA(Perturbation):
    """Perturb along `g + kappa Delta`, descend along `g(w + e) + beta Delta`; Delta: the last mean movement.

    FedTOGA (arXiv 2408.14144), Algorithm 1, without its dual. `Delta = mean_S (w^t - u_i) /
    per(v)`.
    """

    rho: NonNegativeFloat = 0.1
    kappa: NonNegativeFloat = 1.0
    beta: NonNegativeFloat = 0.8
    per: Callable[[Any], Tensor] = per_step
    eps: NonNegativeFloat = field(default=1e-7, kw_only=True)
    server = {"Delta": zeros}

    def gradient(self, oracle: Oracle, w: Tensor, v: Any) -> Tensor:
        e = self.rho * unit(oracle(w) + self.kappa * v.Delta, self.eps)
        return oracle(w + e) + self.beta * v.Delta

    def report(self, w: Tensor, v: Any) -> Tensor:
        return (v.origin - w) / self.per(v)

    def update(self, delta: Tensor, mean: Tensor, v: Any) -> Tensor:
        v.Delta = mean
        return delta


class _Recalling:
    """An oracle that answers the first question of a step from memory, and remembers the answer to the last one."""

    def __init__(
        self, oracle: Oracle, first: Callable[[Oracle, Tensor], Tensor], asked: list[Tensor]
    ):
        self.oracle, self.first, self.asked = oracle, first, asked

    def __call__(self, w: Tensor) -> Tensor:
        self.asked.append(self.oracle(w) if self.asked else self.first(self.oracle, w))
        return self.asked[-1]

    def loss(self, w: Tensor) -> Tensor:
        return self.oracle.loss(w)

    def of(self, loss: Loss, *layers: str) -> "_Recalling":
        return _Recalling(self.oracle.of(loss, *layers), self.first, self.asked)

    def part(self, index: int, count: int) -> "_Recalling":
        return _Recalling(self.oracle.part(index, count), self.first, self.asked)


@dataclass(frozen=True)
class Neighbour(WrappedTerm):
    """FedTOGA's neighbourhood perturbation for any term that ascends along a gradient of its own.

    The term's ascent gradient is replaced by R, its previous perturbed one, which saves a pass
    (`N-P`), or R is added to it (`fusion`). R begins a visit at zero unless it is carried over from
    the client's last one.
    """

    fusion: bool = False
    carry: bool = False
    roles = frozenset({"perturb"})

    @property
    def client(self) -> Mapping[str, Initializer]:  # type: ignore[override]
        return {**self.inner.client, **({"R": zeros} if self.carry else {})}

    @property
    def local(self) -> Mapping[str, Initializer]:  # type: ignore[override]
        return {**self.inner.local, **({} if self.carry else {"R": zeros})}

    def gradient(self, oracle: Oracle, w: Tensor, v: Any) -> Tensor:
        R, asked = v.R, list[Tensor]()
        first = (lambda oracle, w: oracle(w) + R) if self.fusion else (lambda oracle, w: R)
        direction = self.inner.gradient(_Recalling(oracle, first, asked), w, v)
        if len(asked) != 2:
            raise TermError(
                f"{type(self.inner).__name__} asks for {len(asked)} gradient(s) a step, not for one to ascend along "
                "and one to step along: a neighbourhood perturbation is for terms such as SAM, ASAM, SMOO and TOGA"
            )
        v.R = asked[-1]
        return direction
