"""Differential privacy of clients: updates of bounded norm, and noise on their sum."""

from dataclasses import dataclass
from math import inf, sqrt
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from fl_lightning.core.constraints import NonNegativeFloat, OpenFraction, PositiveFloat, Range
from fl_lightning.core.curves import Curve
from fl_lightning.core.term import Term, View, scalar
from fl_lightning.errors import UserError

ClipNorm = Annotated[float, Range("a positive number, or inf", 0, ends="(]")]
Accountant = Literal["rdp", "prv"]


@dataclass(frozen=True)
class GaussianMechanism(Term):
    """Updates clipped to the norm C, and Gaussian noise of deviation z C on their sum.

    The server moves by `(sum_i delta_i min(1, C / ||delta_i||) + z C n) / (q N)`: the sum is
    divided by the expected size of a cohort, which no client changes. An infinite C, without noise,
    leaves the mean of the cohort. Terms that change what is sent stand before this one, those that
    change the mean update after it. Its attributes are the options of
    `fl_lightning.algorithms.dp_fedavg`.
    """

    clip: ClipNorm = 1.0
    noise_multiplier: NonNegativeFloat = 1.0
    delta: OpenFraction = 1e-5
    accountant: Accountant = "rdp"
    roles = frozenset({"noise"})
    logs = ("clipped_updates",)

    def __post_init__(self) -> None:
        super().__post_init__()
        noisy = isinstance(self.noise_multiplier, Curve) or self.noise_multiplier > 0
        if self.clip == inf and noisy:
            raise UserError(
                "an infinite clip needs infinite noise: choose a finite clip, or noise_multiplier 0"
            )

    def send(self, delta: Tensor, v: View) -> Tensor:
        return _clipped(delta, self.clip, v)

    def update(self, delta: Tensor, mean: Any, v: View) -> Tensor:
        if self.clip == inf:
            return delta
        return _noisy(delta, self.noise_multiplier * self.clip, v)


@dataclass(frozen=True)
class AdaptiveClipping(GaussianMechanism):
    """`GaussianMechanism` whose norm C follows a quantile of the norms of the updates.

    Clients report whether their norm is at most C. With b the noisy part of them that do,
    `C <- C exp(-clip_lr (b - quantile))`. The noise on the count has the deviation
    `s = max(q N / 20, z)`, a twentieth of the expected cohort as in the paper. That on the updates
    is raised to `z C / sqrt(1 - (z / 2s)^2)`, so that both together cost as much as z alone. `clip`
    is where C begins.
    """

    quantile: OpenFraction = 0.5
    clip_lr: PositiveFloat = 0.2
    logs = ("clipped_updates", "clip_norm")  # type: ignore[assignment]
    local = {"below": scalar}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.clip == inf:
            raise UserError("an adaptive clip begins at a finite number, not at inf")

    @property
    def server(self) -> Any:  # type: ignore[override]
        return {"C": lambda first, now: now.new_full((), self.clip)}

    def send(self, delta: Tensor, v: View) -> Tensor:
        v.log("clip_norm", v.C)
        v.below = (_norm(delta) <= v.C).to(delta)
        return _clipped(delta, v.C, v)

    def report(self, w: Tensor, v: View) -> Tensor:
        return v.below - 0.5  # so that one client changes the sum by a half at most

    def update(self, delta: Tensor, mean: Tensor, v: View) -> Tensor:
        z = self.noise_multiplier
        s = max(v.inclusion_probability * v.clients / 20, z)
        delta = _noisy(delta, z / sqrt(1 - (z / (2 * s)) ** 2) * v.C, v)
        b = 0.5 + _noisy(mean, s if z else 0.0, v)
        v.C = v.C * torch.exp(-self.clip_lr * (b - self.quantile))
        return delta


def _norm(delta: Tensor) -> Tensor:
    """The length, from above: `delta.norm()` of two million float32 numbers is 3e-5 too short."""
    return delta.square().sum().sqrt() * (1 + 8 * torch.finfo(delta.dtype).eps)


def _clipped(delta: Tensor, clip: float | Tensor, v: View) -> Tensor:
    norm = _norm(delta)
    v.log("clipped_updates", norm > clip)
    return delta * (clip / norm).clamp(max=1)


def _noisy(mean: Tensor, deviation: float | Tensor, v: View) -> Tensor:
    """The sum over the cohort, with noise of this deviation, over the expected size of a cohort."""
    expected = v.inclusion_probability * v.clients
    return mean * (v.participation / v.inclusion_probability) + (
        deviation / expected * torch.randn_like(mean)
    )
