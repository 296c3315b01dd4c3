"""Steps of matrices: Muon's orthogonalized momentum, and the bias-corrected LMO."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fl_lightning.core.constraints import (
    BelowOneFloat,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    UnitInterval,
)
from fl_lightning.core.oracle import Oracle
from fl_lightning.core.term import Term, View, scalar, zeros
from fl_lightning.terms.adaptive import Warm, unbiased


def newton_schulz(Z: Tensor, steps: int = 5, eps: float = 1e-7) -> Tensor:
    """Nearly the polar factor U V^T of `Z = U S V^T`, by Muon's quintic iteration.

    Its singular values lie near 1; where Z has one below 1e-3 of its norm, they are smaller. Jordan
    et al. 2024, https://kellerjordan.github.io/posts/muon. They iterate in bfloat16, here in the
    dtype of Z. A tensor of more than two axes is a matrix of its first axis and all others.

    Of a matrix X that is twice as wide as high, only the square X X^T is iterated, and X is
    multiplied once, at the end (Gram Newton-Schulz, https://dao-lab.ai/blog/2026/gram-newton-schulz).
    """
    X = Z.flatten(1) / (Z.norm() + eps)
    if tall := X.shape[0] > X.shape[1]:
        X = X.T
    A, wide = X @ X.T, X.shape[1] >= 2 * X.shape[0]
    Y = torch.eye(len(X), dtype=X.dtype, device=X.device) if wide else X
    for left in reversed(range(steps)):
        P = -4.775 * A + 2.0315 * A @ A
        Y = _quintic(P, Y)
        if left:
            A = _quintic(P, _quintic(P, A)) if wide else Y @ Y.T
    X = Y @ X if wide else Y
    return (X.T if tall else X).reshape(Z.shape)


def _quintic(P: Tensor, Y: Tensor) -> Tensor:
    return 3.4445 * Y + P @ Y


def polar(Z: Tensor, cut: float = 1e-10) -> Tensor:
    """The polar factor U V^T by singular values, those below `cut` times the largest left out.

    Their directions would be rounding noise of full length.
    """
    U, S, Vh = torch.linalg.svd(Z.flatten(1), full_matrices=False)
    return (U * (cut * S[:1] < S) @ Vh).reshape(Z.shape)


def low_rank(Z: Tensor, share: float) -> Tensor:
    """The nearest matrix of this share of the rank at which the factors have as many numbers as Z.

    A share of 0 leaves Z as it is.
    """
    if not share:
        return Z
    U, S, Vh = torch.linalg.svd(Z.flatten(1), full_matrices=False)
    m, n = len(U), Vh.shape[-1]
    r = int(share * m * n / (m + n + 1))
    return (U[:, :r] * S[:r] @ Vh[:r]).reshape(Z.shape)


@dataclass(frozen=True)
class Muon(Warm):
    """Muon on matrices, Adam on vectors; with `warm`, the momentum of the cohort (FedMuon).

    Matrices step along `gain (NS(beta M + (1 - beta) g) sqrt(max(1, rows / columns)) + decay w)`.

    Attributes:
        beta: Decay of the momentum M.
        gain: Learning rate of matrices, in multiples of that of vectors.
        rank: Clients send M of a lower rank, this share of the one at which its factors have as
            many numbers as M; 0 sends M.
    """

    beta: BelowOneFloat = 0.95
    gain: PositiveFloat = 1.0
    decay: NonNegativeFloat = 0.01
    rank: NonNegativeFloat = 0.0
    local = {"M": zeros, "m": zeros, "s": zeros, "k": scalar}
    moment = "M"
    usual_lr = 0.03

    def gradient(self, oracle: Oracle, w: Tensor, v: View) -> Tensor:
        g, v.k = oracle(w), v.k + 1
        v.M, v.m = torch.lerp(g, v.M, self.beta), torch.lerp(g, v.m, 0.9)
        v.s = torch.lerp(g.square(), v.s, 0.95)
        ahead, direction = torch.lerp(g, v.M, self.beta), partial(self._direction, v.k)
        return v.layout.map(direction, ahead, v.m, v.s, w)

    def _direction(self, k: Tensor, M: Tensor, m: Tensor, s: Tensor, w: Tensor) -> Tensor:
        if M.ndim < 2:
            adam = unbiased(m, 0.9, k) / (unbiased(s, 0.95, k).sqrt() + 1e-10)
            return adam + self.decay * w
        shape = max(1.0, len(M) / M[0].numel()) ** 0.5
        return self.gain * (newton_schulz(M) * shape + self.decay * w)

    def sent(self, moment: Tensor, v: View) -> Tensor:
        return v.layout.map(self._sent, moment)

    def _sent(self, M: Tensor) -> Tensor:
        return low_rank(M, self.rank) if M.ndim > 1 else torch.zeros_like(M)


@dataclass(frozen=True)
class LMO(Term):
    """Steps along the polar factor of a momentum M_i that stays with the client.

    Vectors step along their unit vector.

    Attributes:
        alpha: Weight of the gradient in the momentum.
        iterations: Of Newton and Schulz; 0 steps along the matrix by its norm, None is exact.
        damp: Move by M / N times the mean, as if the idle clients had stayed at w^t.
    """

    alpha: UnitInterval = 0.9
    iterations: NonNegativeInt | None = 5
    damp: bool = True
    client = {"M_i": zeros}

    def gradient(self, oracle: Oracle, w: Tensor, v: View) -> Tensor:
        v.M_i = torch.lerp(v.M_i, oracle(w), self.alpha)
        return v.layout.map(self._minimizer, self._corrected(v))

    def _corrected(self, v: View) -> Tensor:
        return v.M_i

    def _minimizer(self, G: Tensor) -> Tensor:
        if G.ndim < 2:
            length = G.norm()
            return torch.where(length > 1e-12, G / length.clamp(min=1e-30), 0)
        return polar(G) if self.iterations is None else newton_schulz(G, self.iterations, 1e-12)

    def update(self, delta: Tensor, mean: Any, v: View) -> Tensor:
        return v.participation * delta if self.damp else delta


@dataclass(frozen=True)
class CorrectedLMO(LMO):
    """FedMuon's bias-corrected LMO: the polar factor of `M_i - C_i + C`.

    C_i is the momentum at the client's last visit, and C the mean of all clients'.
    """

    server = {"C": zeros}
    local = {"C_i": zeros}

    def start(self, w: Tensor, v: View) -> Tensor:
        v.C_i = v.M_i
        return w

    def _corrected(self, v: View) -> Tensor:
        return v.M_i - v.C_i + v.C

    def report(self, w: Tensor, v: View) -> Tensor:
        return v.M_i - v.C_i

    def update(self, delta: Tensor, mean: Tensor, v: View) -> Tensor:
        v.C = v.C + v.participation * mean
        return super().update(delta, mean, v)
