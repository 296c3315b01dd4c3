"""The Hessian of the mean loss: top eigenvalues, trace and spectral density."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import nan

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fl_lightning.errors import UserError
from fl_lightning.federation.mean_loss import MeanLoss

Product = Callable[[Tensor], Tensor]
"""`product(v)` is the Hessian times `v`."""


@dataclass(frozen=True)
class Hessian:
    """Eigenvalues and trace of a Hessian.

    Attributes:
        eigenvalues: (top,) the largest ones, the largest first.
        eigenvectors: (top, len(w)) of norm 1.
        trace: Hutchinson's estimate.
        trace_error: Its standard error over the random vectors.
        nodes: (vectors, steps) eigenvalues of the Lanczos matrices (Ritz values).
        weights: (vectors, steps) their weights, which add to 1 for each random vector.
    """

    eigenvalues: Tensor
    eigenvectors: Tensor
    trace: float
    trace_error: float
    nodes: Tensor
    weights: Tensor

    @property
    def ratio(self) -> float:
        """The largest eigenvalue over the last of the top ones, such as lambda_1 / lambda_5."""
        return float(self.eigenvalues[0] / self.eigenvalues[-1])

    def density(self, points: Tensor, width: float) -> Tensor:
        """The spectral density at these points, smoothed by Gaussians with this deviation.

        Returns:
            A tensor like `points`; its integral is 1.
        """
        z = (points[:, None] - self.nodes.flatten()) / width
        heights = torch.exp(-z.square() / 2) / (width * (2 * torch.pi) ** 0.5)
        return heights @ self.weights.flatten() / len(self.nodes)


def hessian(
    loss: MeanLoss, top: int = 5, vectors: int = 4, steps: int = 30, seed: int = 0
) -> Hessian:
    """The Hessian of the loss at the model's weights, from its products with vectors.

    The top eigenvalues are those of `scipy.sparse.linalg.eigsh`. `vectors` random sign vectors
    give the trace (Hutchinson) and, with `steps` products each, the spectral density (stochastic
    Lanczos quadrature; Ghorbani, Krishnan and Xiao, ICML 2019, https://arxiv.org/abs/1901.10159).

    Args:
        loss: The mean loss.
        top: Number of eigenvalues, less than the number of parameters.
        vectors: Number of random vectors.
        steps: Products for each of them.
        seed: The seed of the random vectors.

    Raises:
        UserError: If `top` is not less than the number of parameters.
    """
    w = loss.weights
    if not 0 < top < len(w):
        raise UserError(f"top is at least 1 and less than the {len(w)} parameters, not {top}")
    g, product = torch.Generator().manual_seed(seed), partial(loss.hvp, w)
    eigenvalues, eigenvectors = top_eigenpairs(product, w, top, g)
    spectra = [lanczos(product, random_signs(w, g), steps) for _ in range(vectors)]
    nodes, weights = (torch.stack(parts) for parts in zip(*spectra, strict=True))
    traces = len(w) * (nodes * weights).sum(1)
    error = float(traces.std() / vectors**0.5) if vectors > 1 else nan
    return Hessian(eigenvalues, eigenvectors, float(traces.mean()), error, nodes, weights)


def top_eigenpairs(
    product: Product, like: Tensor, top: int, g: torch.Generator
) -> tuple[Tensor, Tensor]:
    """The largest eigenvalues, to 1e-4 of each, the largest first; their eigenvectors as rows."""
    # here, because training does not need it
    from scipy.sparse.linalg import LinearOperator, eigsh

    def matvec(v: NDArray[np.float64]) -> NDArray[np.float64]:
        return product(torch.from_numpy(v).to(like).flatten()).double().cpu().numpy()

    operator = LinearOperator((len(like), len(like)), matvec=matvec, dtype=np.float64)
    start = random_signs(like, g).double().cpu().numpy()
    values, vectors = eigsh(operator, top, which="LA", v0=start, tol=1e-4)
    descending = values.argsort()[::-1].copy()
    return torch.from_numpy(values[descending]), torch.from_numpy(vectors.T[descending]).to(like)


def lanczos(product: Product, start: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """Ritz values of the operator for this start vector, and their weights, which add to 1.

    Each vector is orthogonalized against all earlier ones, so that no eigenvalue appears twice.

    Returns:
        Two float64 tensors (steps,). If the iteration ends early, in an invariant subspace, the
        surplus entries have weight 0.
    """
    basis = start.new_empty(steps, len(start))
    basis[0] = start / start.norm()
    matrix = torch.zeros(steps, steps, dtype=torch.float64)
    for k in range(steps):
        following = product(basis[k])
        matrix[k, k] = float(following @ basis[k])
        for _ in range(2):  # the second time for what rounding has left
            following = following - basis[: k + 1].T @ (basis[: k + 1] @ following)
        size = float(following.norm())
        if k + 1 == steps or size <= 1e-6 * float(matrix.abs().max()):
            break
        matrix[k, k + 1] = matrix[k + 1, k] = size
        basis[k + 1] = following / size
    nodes, vectors = torch.linalg.eigh(matrix[: k + 1, : k + 1])
    missing = torch.zeros(steps - len(nodes), dtype=torch.float64)
    return torch.cat([nodes, missing]), torch.cat([vectors[0].square(), missing])


def random_signs(like: Tensor, g: torch.Generator) -> Tensor:
    """A vector of random signs, each with probability one half."""
    return (torch.randint(0, 2, (len(like),), generator=g) * 2 - 1).to(like)
