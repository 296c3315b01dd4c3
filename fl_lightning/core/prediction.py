"""Prediction rules of personal models: outputs, or a vote of nearest samples."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._pytree import tree_map

from fl_lightning.core.constraints import PositiveFloat, PositiveInt, UnitInterval, check
from fl_lightning.core.losses import (
    IGNORED,
    TaskLoss,
    cross_entropy,
    is_cross_entropy,
    like,
    option,
)


@dataclass(frozen=True)
class PersonalModel:
    """A client's personal model and samples.

    Attributes:
        look: Features (what enters the head, flattened) and logits of a batch of inputs, in
            evaluation mode.
        x, y: The client's training samples, not augmented; x is a tensor, or several.
        classes: Number of classes.
    """

    look: Callable[[Any], tuple[Tensor, Tensor]]
    x: Any
    y: Tensor
    classes: int


Predict = Callable[[PersonalModel], Callable[[Any], Tensor]]
"""`predict(own)` prepares a client once and returns a map from inputs to scores (b, classes)."""


def for_classes(loss: TaskLoss, scores: Any, y: Any) -> tuple[Any, Any]:
    """Scores and labels of a loss as `predicted` takes them; a label that does not count is -100.

    PyTorch's losses have classes second, and some have probabilities for scores.
    """
    if not (isinstance(scores, Tensor) and isinstance(y, Tensor)):
        return scores, y
    entropy = is_cross_entropy(loss)
    of_torch = entropy and loss is not cross_entropy
    second = scores.ndim > y.ndim and scores.shape[:1] + scores.shape[2:] == y.shape
    if second and (of_torch or scores.shape[:-1] != y.shape):
        scores = scores.movedim(1, -1)
    if of_torch and y.dtype == torch.int64:
        y = y.masked_fill(y == option(loss, "ignore_index", IGNORED), IGNORED)
    elif scores.numel() == y.numel() and not entropy and _is_lowest_at_target(loss, scores, y):
        scores = scores - 0.5
    return scores, y


def _is_lowest_at_target(loss: TaskLoss, scores: Tensor, y: Tensor) -> bool:
    """Whether scores are in the scale of labels of 0 and 1, as of BCELoss: no logits."""
    near = like(y, scores).clamp(0.001, 0.999)  # where each logarithm is finite
    try:
        return bool(loss(near, y) < 0.01 * loss(1 - near, y))
    except Exception:  # it takes other outputs
        return False


def predicted(scores: Tensor, y: Tensor) -> Tensor:
    """The predicted classes, of the shape of the labels `y`.

    Args:
        scores: (*y.shape, classes): the class of the highest score. As many as labels, one for each
            of them: class 1 where it is positive.
        y: The labels.

    Raises:
        ValueError: If the scores have another shape.
    """
    if scores.numel() == y.numel():
        return (scores.view_as(y) > 0).long()
    if scores.shape[:-1] != y.shape:
        raise ValueError(
            f"there are scores of shape {tuple(scores.shape)} for labels of shape {tuple(y.shape)}"
        )
    return scores.argmax(-1)


def is_right(scores: Tensor, y: Tensor) -> Tensor:
    """Whether the predicted class is the label, of the shape of `y`; NaN is never right."""
    unsure = scores.isnan()  # which argmax takes for the highest
    of_each = unsure.view_as(y) if scores.numel() == y.numel() else unsure.any(-1)
    return (predicted(scores, y) == y) & ~of_each


def from_logits(own: PersonalModel) -> Callable[[Any], Tensor]:
    """The model's outputs."""
    return lambda x: own.look(x)[1]


@dataclass(frozen=True)
class NearestNeighbors:
    """kNN-Per: `mix` of the neighbors' vote, `1 - mix` of the model's probabilities.

    A neighbor among the client's training samples votes with `exp(-d^2 / (F scale))`, d being its
    distance in the F features that enter the head. The attributes are the options of
    `fl_lightning.algorithms.knn_per`; `logits` mixes with the raw logits, as the authors' code does
    by mistake.

    References:
        Marfoq et al., ICML 2022, https://arxiv.org/abs/2111.09360
    """

    neighbors: PositiveInt = 7
    mix: UnitInterval = 0.5
    scale: PositiveFloat = 1.0
    capacity: PositiveInt | None = None
    logits: bool = False

    def __post_init__(self) -> None:
        check(self, " of NearestNeighbors", curves=True)

    def __call__(self, own: PersonalModel) -> Callable[[Any], Tensor]:
        """Store the features of the client's samples."""
        order = torch.randperm(len(own.y), generator=torch.Generator().manual_seed(0))
        kept = order[: self.capacity].to(own.y.device)

        def features(index: Tensor) -> Tensor:
            return own.look(tree_map(lambda rows: rows[index], own.x))[0]

        stored = torch.cat([*map(features, kept.split(100))])
        votes_for = F.one_hot(own.y[kept], own.classes).to(stored)

        def scores(x: Any) -> Tensor:
            features, logits = own.look(x)
            squared = torch.cdist(features, stored).square()
            near, index = squared.topk(min(self.neighbors, len(stored)), largest=False)
            scale = features.shape[1] * self.scale
            nearness = torch.exp((near[:, :1] - near) / scale)  # the nearest counts 1
            votes = (nearness[..., None] * votes_for[index]).sum(1) / nearness.sum(1, keepdim=True)
            if logits.shape[1] == 1:  # of class 1 of two
                logits = F.pad(logits, (1, 0))
            votes = F.pad(votes, (0, logits.shape[1] - votes.shape[1]))  # or more outputs
            model = logits if self.logits else logits.softmax(1)
            return self.mix * votes + (1 - self.mix) * model

        return scores
