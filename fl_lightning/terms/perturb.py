"""Perturbations found anew at every step: where the gradient is taken."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from fl_lightning.core.constraints import (
    NonNegativeFloat,
    PositiveFraction,
    PositiveInt,
    UnitInterval,
)
from fl_lightning.core.oracle import Oracle, WrappedOracle
from fl_lightning.core.term import Initializer, Term, View, WrappedTerm, scalar, zeros
from fl_lightning.core.vector import Layout, Part, unit
from fl_lightning.errors import TermError


@dataclass(frozen=True)
class Perturbation(Term):
    """A perturbation of length `rho`; `eps` is added to the norm that divides it."""

    rho: NonNegativeFloat = 0.05
    eps: NonNegativeFloat = field(default=1e-12, kw_only=True)
    roles = frozenset({"perturb"})

    def direction(self, along: Tensor, v: View) -> Tensor:
        """The unit vector."""
        return unit(along, self.eps)


@dataclass(frozen=True)
class SAM(Perturbation):
    """Sharpness-aware minimization: `g(w + rho unit(g(w)))`, two passes on the same batch.

    Attributes:
        mix: Weight of this gradient; g(w) has the rest (FedSpeed).
        ascent: "raw" ascends by `rho g` (FedSpeed's paper).
        part: The parameters that are perturbed (see `Layout.has`): "norm" is SAM-ON. None is all.

    References:
        Foret et al., ICLR 2021, https://arxiv.org/abs/2010.01412
        SAM-ON: Mueller et al., NeurIPS 2023, https://arxiv.org/abs/2306.04226

    Example:
        >>> import torch
        >>> SAM(rho=0.5).gradient(lambda w: 2 * w, torch.tensor([3.0, 4.0]), None)
        tensor([6.6000, 8.8000])
    """

    mix: UnitInterval = 1.0
    ascent: Literal["unit", "raw"] = "unit"
    part: Part | None = None

    def gradient(self, oracle: Oracle, w: Tensor, v: Any) -> Tensor:
        g = oracle(w)
        up = g if self.part is None else g * _mask(self.part, v.layout, g)
        e = self.rho * (up if self.ascent == "raw" else unit(up, self.eps))
        return torch.lerp(g, oracle(w + e), self.mix)


def _mask(part: Part, layout: Layout, like: Tensor) -> Tensor:
    """Ones for the part that is perturbed, zeros elsewhere."""
    if not any(layout.has(part, name) for name in layout.names):
        named = "of a normalization layer" if part == "norm" else f"{part!r}"
        raise TermError(
            f"the model has no trainable parameter {named}, which this perturbation moves alone: "
            "choose another model or perturbation"
        )
    return layout.mask(part, like)


@dataclass(frozen=True)
class VaSSO(Perturbation):
    """SAM along a moving average of gradients, `d <- (1 - theta) d + theta g`.

    Attributes:
        theta: Weight of the newest gradient; 1 is SAM.
        carry: Keep d between a client's visits; otherwise it begins as the first gradient.

    References:
        Li and Giannakis, NeurIPS 2023, https://arxiv.org/abs/2309.15639
    """

    theta: PositiveFraction = 0.9
    carry: bool = False

    @property
    def client(self) -> Mapping[str, Initializer]:  # type: ignore[override]
        return {"d": zeros, "begun": scalar} if self.carry else {}

    @property
    def local(self) -> Mapping[str, Initializer]:  # type: ignore[override]
        return {} if self.carry else {"d": zeros, "begun": scalar}

    def gradient(self, oracle: Oracle, w: Tensor, v: View) -> Tensor:
        g = oracle(w)
        v.d = torch.where(v.begun > 0, torch.lerp(v.d, g, self.theta), g)
        v.begun = torch.ones_like(v.begun)
        return oracle(w + self.rho * unit(v.d, self.eps))


@dataclass(frozen=True)
class GSAM(Perturbation):
    """SAM that also lowers the surrogate gap, the loss at `w + e` less that at w.

    The direction is `g(w + e) - alpha g_v`, where g_v is the part of g(w) orthogonal to g(w + e).

    Attributes:
        alpha: Weight of the gap; 0 is SAM.

    References:
        Zhuang et al., ICLR 2022, https://arxiv.org/abs/2203.08065
    """

    alpha: NonNegativeFloat = 0.2

    def gradient(self, oracle: Oracle, w: Tensor, v: Any) -> Tensor:
        g = oracle(w)
        ahead = oracle(w + self.rho * unit(g, self.eps))
        along = unit(ahead, self.eps)
        return ahead - self.alpha * (g - (along.conj() * g).real.sum() * along)


@dataclass(frozen=True)
class MSAM(Perturbation):
    """m-SAM: SAM on each part of the batch, with a perturbation of its own; then their mean.

    A part is every `parts`-th sample, or one sample of a batch that has fewer. Parts count alike.

    Attributes:
        parts: Number of parts; 1 is SAM.

    References:
        Foret et al., ICLR 2021, https://arxiv.org/abs/2010.01412 (m-sharpness)
    """

    parts: PositiveInt = 2

    def gradient(self, oracle: Oracle, w: Tensor, v: Any) -> Tensor:
        parts = [oracle.part(i, self.parts) for i in range(self.parts)]
        ahead = [g(w + self.rho * unit(g(w), self.eps)) for g in parts]
        return torch.stack(ahead).mean(0)


@dataclass(frozen=True)
class ASAM(Perturbation):
    """Adaptive SAM, in a ball scaled by `T = |w| + eta`: `e = rho T^2 g / ||T g||`.

    Where `scaled` is a word, parameters whose names lack it have T = 1.

    References:
        Kwon et al., ICML 2021, https://arxiv.org/abs/2102.11600
    """

    rho: NonNegativeFloat = 0.5
    eta: NonNegativeFloat = 0.01
    scaled: str = ""

    def gradient(self, oracle: Oracle, w: Tensor, v: Any) -> Tensor:
        T, g = w.abs() + self.eta, oracle(w)
        if self.scaled:
            mask = v.layout.mask(self.scaled, w)
            T = mask * T + (1 - mask)
        return oracle(w + self.rho * T.square() * g / ((T * g).norm() + self.eps))


@dataclass(frozen=True)
class SMOO(Perturbation):
    """FedSMOO's perturbation: `e = rho unit(g - mu_i - s)`, whose dual mu_i pulls e to a common s.

    At each step `mu_i <- mu_i + e - s`; then `s = rho unit(mean(mu_i - e))`.
    """

    rho: NonNegativeFloat = 0.1
    eps: NonNegativeFloat = field(default=1e-7, kw_only=True)
    client = {"mu_i": zeros}
    server = {"s": zeros}
    local = {"e": zeros}

    def gradient(self, oracle: Oracle, w: Tensor, v: View) -> Tensor:
        v.e = self.rho * unit(oracle(w) - v.mu_i - v.s, self.eps)
        v.mu_i = v.mu_i + v.e - v.s
        return oracle(w + v.e)

    def report(self, w: Tensor, v: View) -> Tensor:
        return v.mu_i - v.e

    def update(self, delta: Tensor, mean: Tensor, v: View) -> Tensor:
        v.s = self.rho * unit(mean, self.eps)
        return delta


@dataclass(frozen=True)
class TOGA(Perturbation):
    """FedTOGA's trend: `g(w + e) + beta Delta`, with `e = rho unit(g + kappa Delta)`.

    Delta is the last mean movement, `mean_S (w^t - u_i) / per`. Algorithm 1 without its dual. The
    texts leave the divisor open: Algorithm 1 prints K alone ("steps"), the experiments call the
    number of epochs K ("epochs"), and section 4.1 takes Delta for a gradient as FedCM ("lr_sum").
    """

    rho: NonNegativeFloat = 0.1
    kappa: NonNegativeFloat = 1.0
    beta: NonNegativeFloat = 0.8
    per: Literal["steps", "epochs", "lr_sum"] = "lr_sum"
    eps: NonNegativeFloat = field(default=1e-7, kw_only=True)
    server = {"Delta": zeros}

    def gradient(self, oracle: Oracle, w: Tensor, v: View) -> Tensor:
        e = self.rho * unit(oracle(w) + self.kappa * v.Delta, self.eps)
        return oracle(w + e) + self.beta * v.Delta

    def report(self, w: Tensor, v: View) -> Tensor:
        return (v.origin - w) / getattr(v, self.per)

    def update(self, delta: Tensor, mean: Tensor, v: View) -> Tensor:
        v.Delta = mean
        return delta

    def summary_lines(self, first: View, last: View) -> Iterator[str]:
        if self.beta:
            ends = (float(self.beta * v.lr_sum / getattr(v, self.per)) for v in (first, last))
            from_to = " to ".join(dict.fromkeys(f"{m:.2g}" for m in ends))
            yield f"effective server momentum: {from_to}"


@dataclass(eq=False)
class _Recalling(WrappedOracle):
    """An oracle whose first answer in a step is `first`; it remembers all answers."""

    first: Callable[[Oracle, Tensor], Tensor]
    asked: list[Tensor]

    def __call__(self, w: Tensor) -> Tensor:
        self.asked.append(self.inner(w) if self.asked else self.first(self.inner, w))
        return self.asked[-1]


@dataclass(frozen=True)
class Neighbor(WrappedTerm):
    """FedTOGA's neighborhood perturbation, for any term that ascends along a gradient.

    Attributes:
        inner: The term. Its ascent gradient is replaced by R, the previous perturbed gradient,
            which saves a pass (`N-P`).
        fusion: Add R to the ascent gradient instead.
        carry: Keep R from one visit of a client to the next; otherwise it begins as zero.
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

    def gradient(self, oracle: Oracle, w: Tensor, v: View) -> Tensor:
        R, asked = v.R, list[Tensor]()
        first = (lambda oracle, w: oracle(w) + R) if self.fusion else (lambda oracle, w: R)
        direction = self.inner.gradient(_Recalling(oracle, first, asked), w, v)
        if len(asked) != 2 or isinstance(self.inner, WrappedTerm):  # whose gradient is another one
            raise TermError(
                f"{type(self.inner).__name__} has no ascent along the task's gradient alone: a "
                "neighborhood perturbation is for terms such as SAM, ASAM, SMOO and TOGA"
            )
        v.R = asked[-1]
        return direction
