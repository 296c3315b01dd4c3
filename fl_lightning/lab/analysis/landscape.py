"""The loss on a plane through the weights, and on the line between two models."""

from copy import deepcopy
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from fl_lightning.core.losses import TaskLoss, cross_entropy
from fl_lightning.data import DeviceDataset
from fl_lightning.errors import UserError
from fl_lightning.federation.mean_loss import MeanLoss
from fl_lightning.lab.analysis.curvature import top_eigenpairs


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
        axes: Two directions, such as those of `hessian_axes`; None is `filter_normalized_axes`.
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


def hessian_axes(loss: MeanLoss, seed: int = 0) -> tuple[Tensor, Tensor]:
    """The two eigenvectors of the Hessian with the largest eigenvalues, of length 1."""
    w, g = loss.weights, torch.Generator().manual_seed(seed)
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
