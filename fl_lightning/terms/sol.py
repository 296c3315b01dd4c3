"""FedSOL: a proximal objective that decides where the gradient is taken, instead of being added."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from fl_lightning.core.constraints import NonNegativeFloat, PositiveFloat
from fl_lightning.core.oracle import ForwardPass, Loss, Oracle, WrappedOracle
from fl_lightning.core.term import View, WrappedTerm
from fl_lightning.core.vector import unit
from fl_lightning.terms.distill import divergence
from fl_lightning.terms.perturb import Perturbation


@dataclass(eq=False)
class ProximalOnly(WrappedOracle):
    """An oracle without the task: a term around it gives what it adds to the gradient.

    Attributes:
        proximal: The oracle of the loss that the term has added; None if it adds no loss.
    """

    proximal: Oracle | None = field(default=None, init=False)

    def __call__(self, w: Tensor) -> Tensor:
        """Zero."""
        return torch.zeros_like(w)

    def loss(self, w: Tensor) -> Tensor:
        """Zero."""
        return w.new_zeros(())

    def of(self, loss: Loss, *layers: str) -> Oracle:
        """The gradient of `loss`, to which the loss so far is zero."""
        without_task = self.inner.of(lambda b: torch.zeros_like(b.loss))
        self.proximal = without_task.of(loss, *layers)
        return self.proximal


Per = Literal["column", "tensor"]
"""The norm in Lambda: of a parameter's columns (released code), or of all of it (Eq. 7)."""


def relative_move(moved: Tensor, per: Per) -> Tensor:
    """`|w - w^t|` of a parameter over its L2 norm, or over that of each column (first axis)."""
    norm = moved.norm() if per == "tensor" else moved.norm(dim=0)
    return moved.abs() / norm.clamp(min=1e-12)


Scope = Literal["head", "body", "all"]
"""The part of the model that is perturbed."""

Place = Literal["here", "ahead"]
"""Where a gradient is taken: at w or at w + e."""

DIAGNOSTICS = "cos", "proximal_loss", "strength"
"""cos(g_u, g_p) where the client has moved, L_p (0 if it is no loss), and the mean of Lambda."""


def _log_diagnostics(
    without_task: ProximalOnly, q: Callable[[], Tensor], w: Tensor, v: View, strength: Tensor
) -> None:
    """Log `DIAGNOSTICS`; `q` gives the proximal objective's gradient at `w`."""

    def loss() -> Tensor:
        return without_task.proximal.loss(w) if without_task.proximal else w.new_zeros(())

    v.log("cos", lambda: unit(without_task.inner(w)).dot(unit(q())), (w != v.anchor).any())
    v.log("proximal_loss", loss)
    v.log("strength", strength.mean)


def _strength(w: Tensor, v: View, scale: Per | None, still: bool) -> Tensor:
    """The factor of the unit direction; 0 until the client moves, since q is then noise."""
    moved = w - v.anchor
    if scale is not None:
        return v.layout.map(partial(relative_move, per=scale), moved)
    return (moved != 0).any().to(w) if still else torch.ones_like(w[0])


def _within(scope: Scope, q: Tensor, v: View) -> Tensor:
    """The direction, 0 outside of a part of the model."""
    if scope == "all":
        return q
    head = v.layout.mask("head", q)
    return q * (head if scope == "head" else 1 - head)


@dataclass(frozen=True)
class SOL(WrappedTerm):
    """FedSOL: `g(w + rho Lambda unit(q))`, q being the gradient that the inner term adds.

    Any drift correction can be the inner term (FedSOL's Table 4); its states move as without it.

    Attributes:
        rho: Radius of the perturbation.
        scale: Perturb each weight by how far it has moved; None perturbs all equally.
        scope: The part of the model that is perturbed.
        task: Where the task's gradient is taken (Table 10).
        added: Where the proximal gradient is taken, which is added to it; None adds none.
        beta: Coefficient of the added gradient. The direction has none: its length does not count.
        still: Do not perturb the first step. If False, a fixed strength perturbs it along rounding
            noise, as in the released code.
    """

    rho: NonNegativeFloat = 2.0
    scale: Per | None = "column"
    scope: Scope = "all"
    task: Place = "ahead"
    added: Place | None = None
    beta: NonNegativeFloat = 1.0
    still: bool = True
    roles = frozenset({"perturb"})

    @property
    def diagnostics(self) -> tuple[str, ...]:  # type: ignore[override]
        return (*self.inner.diagnostics, *DIAGNOSTICS)

    def gradient(self, oracle: Oracle, w: Tensor, v: View) -> Tensor:
        without_task = ProximalOnly(oracle)

        def proximal(w: Tensor) -> Tensor:
            return self.inner.gradient(without_task, w, v)

        unscoped = proximal(w)
        q = _within(self.scope, unscoped, v)
        strength = _strength(w, v, self.scale, self.still)
        at = {"here": w, "ahead": w + self.rho * strength * unit(q)}
        direction = oracle(at[self.task])
        if self.added is not None:
            direction = direction + self.beta * proximal(at[self.added])
        _log_diagnostics(without_task, lambda: unscoped, w, v, strength)
        return direction


@dataclass(frozen=True)
class HeadSOL(Perturbation):
    """`SOL` of the head along the distillation loss, in one pass.

    The body runs once; q, from its features alone, displaces the head; the task's loss of the
    displaced head is differentiated through head and body. Exact, except that dropout in the body
    draws one mask where two passes draw two.
    """

    rho: NonNegativeFloat = 2.0
    tau: PositiveFloat = 3.0
    scale: Per | None = "column"
    still: bool = True
    eps: NonNegativeFloat = field(default=1e-12, kw_only=True)
    diagnostics = DIAGNOSTICS

    def gradient(self, oracle: Oracle, w: Tensor, v: View) -> Tensor:
        strength = _strength(w, v, self.scale, self.still)

        def displaced(b: ForwardPass) -> Tensor:
            received = b.at(v.anchor).out
            q = torch.func.grad(
                lambda e: divergence(b.with_head_offset(e, detached=True), received, self.tau)
            )(torch.zeros_like(w))
            return b.with_head_offset(self.rho * strength * unit(q, self.eps)).loss

        direction, without_task = oracle.of(displaced, v.layout.head)(w), ProximalOnly(oracle)

        def q() -> Tensor:
            return without_task.of(lambda b: divergence(b, b.at(v.anchor).out, self.tau))(w)

        _log_diagnostics(without_task, q, w, v, strength)
        return direction


@dataclass(frozen=True)
class GradientProjection(WrappedTerm):
    """Gradient projection (FedSOL's Table 1): `g - min(0, <g, q> / ||q||^2) q`.

    q is the gradient that the inner term adds.
    """

    def gradient(self, oracle: Oracle, w: Tensor, v: View) -> Tensor:
        g, q = oracle(w), self.inner.gradient(ProximalOnly(oracle), w, v)
        conflict = (g.dot(q) / q.dot(q).clamp(min=torch.finfo(q.dtype).tiny)).clamp(max=0)
        return g - (w != v.anchor).any() * conflict * q
