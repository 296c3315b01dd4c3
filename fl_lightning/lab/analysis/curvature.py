"""The mean loss around a model: its Hessian, a plane through the weights, a line to another."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from math import nan

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fl_lightning.core.losses import TaskLoss, cross_entropy
from fl_lightning.data import DeviceDataset
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
    """
    w = loss.weights
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


@dataclass(frozen=True)
class Surface:
    """Loss and accuracy on a square grid in a plane through the model, which is its center.

    Attributes:
        steps: (n,) places along each axis.
        loss: (n, n), rows along the first axis.
        accuracy: (n, n).
    """

    steps: Tensor
    loss: Tensor
    accuracy: Tensor


@dataclass(frozen=True)
class Interpolation:
    """Loss and accuracy at places, (n,) each, on the line from one model (0) to another (1)."""

    places: Tensor
    loss: Tensor
    accuracy: Tensor

    @property
    def barrier(self) -> float:
        """The largest rise of the loss over the straight line between its two ends.

        Frankle et al., "Linear Mode Connectivity and the Lottery Ticket Hypothesis", ICML 2020,
        https://arxiv.org/abs/1912.05671.
        """
        between = (self.places >= 0) & (self.places <= 1)
        t, loss = self.places[between], self.loss[between]
        return float((loss - (1 - t) * loss[0] - t * loss[-1]).max())


def surface(
    loss: MeanLoss,
    axes: tuple[Tensor, Tensor] | None = None,
    points: int = 25,
    span: float = 1.0,
) -> Surface:
    """The loss at `w + a * axes[0] + b * axes[1]` for a and b from -span to span, w the weights.

    Args:
        loss: The mean loss.
        axes: Two directions, such as `hessian_axes`; None is `filter_normalized_axes`.
        points: Points along each axis, at least two.
        span: Half the length of an axis, in lengths of its direction.
    """
    w = loss.weights
    plane = torch.stack(axes or filter_normalized_axes(loss))
    steps = torch.linspace(-span, span, points, device=w.device, dtype=w.dtype)
    rows = torch.cartesian_prod(steps, steps).split(points)
    table = torch.cat([loss.scores(w + row @ plane) for row in rows]).cpu()
    values, accuracy = table.view(points, points, 2).unbind(-1)
    return Surface(steps.cpu(), values, accuracy)


def filter_normalized_axes(loss: MeanLoss, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Two random directions in which each filter has the norm of the model's own filter.

    A filter is the part of a weight that makes one output: a row of a matrix. Biases and weights of
    normalization, which have one dimension, do not move. Models of one architecture get the same
    random numbers, so that their surfaces can be compared.

    Li et al., "Visualizing the Loss Landscape of Neural Nets", NeurIPS 2018,
    https://arxiv.org/abs/1712.09913.
    """

    def normalized(draw: Tensor, weight: Tensor) -> Tensor:
        if weight.ndim < 2:
            return torch.zeros_like(weight)
        draw, filters = draw.flatten(1), weight.flatten(1)
        return draw * filters.norm(dim=1, keepdim=True) / draw.norm(dim=1, keepdim=True)

    w, g = loss.weights, torch.Generator().manual_seed(seed)
    first, second = (
        loss.layout.map(normalized, torch.randn(len(w), generator=g).to(w), w) for _ in range(2)
    )
    return first, second


def hessian_axes(loss: MeanLoss) -> tuple[Tensor, Tensor]:
    """The two eigenvectors of the Hessian with the largest eigenvalues, of length 1."""
    w, g = loss.weights, torch.Generator().manual_seed(0)
    _, vectors = top_eigenpairs(partial(loss.hvp, w), w, 2, g)
    return vectors[0], vectors[1]


def interpolate(
    first: nn.Module,
    second: nn.Module,
    data: DeviceDataset,
    samples: int | None = None,
    points: int = 25,
    span: float = 0.25,
    loss: TaskLoss = cross_entropy,
) -> Interpolation:
    """Loss and accuracy of `(1 - t) * first + t * second`, for t from -span to 1 + span.

    Buffers such as running statistics are interpolated too.

    Args:
        first: A model.
        second: A model of the same architecture.
        data: The samples.
        samples: Number of samples, drawn at random; None is all.
        points: Number of points from 0 to 1, at least two. Those beyond have the same distance.
        span: How far the line goes beyond each model.
        loss: The task's loss, averaged over a batch.

    Raises:
        UserError: If the models have different weights.
    """
    a, b = first.state_dict(), second.state_dict()
    if {k: t.shape for k, t in a.items()} != {k: t.shape for k, t in b.items()}:
        raise UserError("the two models differ in their layers: only weights can be interpolated")
    beyond = round(span * (points - 1))
    places = torch.arange(-beyond, points + beyond, dtype=torch.float64) / (points - 1)
    module = deepcopy(first)
    mean, scores = MeanLoss(module, data, samples, loss=loss), []
    for t in places.tolist():
        between = {k: torch.lerp(a[k], b[k], t) if a[k].is_floating_point() else a[k] for k in a}
        module.load_state_dict(between)
        scores.append(mean.scores(mean.weights[None])[0])
    values, accuracy = torch.stack(scores).cpu().unbind(1)
    return Interpolation(places, values, accuracy)
