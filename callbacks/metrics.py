"""Metrics of a model's outputs by name: torchmetrics objects that see one batch after another."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import torch
import torchmetrics
from torch import Tensor
from torchmetrics import Metric, classification
from torchmetrics.text import Perplexity

from fl_lightning.core.losses import IGNORED, like
from fl_lightning.errors import UserError, nearest


class Accuracy(Metric):
    """The share of samples, or of tokens, whose class has the highest score; NaN is never right."""

    higher_is_better = True
    right: Tensor
    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        for name in ("right", "seen"):
            self.add_state(name, torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, scores: Tensor, y: Tensor) -> None:
        """Count a batch: scores (..., classes) and classes (...); those of -100 do not count."""
        counts = y != IGNORED
        right = (scores.argmax(-1) == y) & ~scores.isnan().any(-1)
        self.right += (right & counts).sum()
        self.seen += counts.sum()

    def compute(self) -> Tensor:
        """The share of all that were counted."""
        return self.right / self.seen


def _of_classes(kind: str, classes: int) -> Metric:
    if classes <= 2:
        return getattr(classification, f"Binary{kind}")()
    return getattr(classification, f"Multiclass{kind}")(classes)


METRICS: dict[str, Callable[[int], Metric]] = {
    "accuracy": lambda classes: Accuracy(),
    "auroc": partial(_of_classes, "AUROC"),
    "f1": partial(_of_classes, "F1Score"),
    "mae": lambda classes: torchmetrics.MeanAbsoluteError(),
    "mse": lambda classes: torchmetrics.MeanSquaredError(),
    "perplexity": lambda classes: Perplexity(ignore_index=IGNORED),
    "r2": lambda classes: torchmetrics.R2Score(),
    "rmse": lambda classes: torchmetrics.MeanSquaredError(squared=False),
}
"""Makes a metric for outputs of this many classes (0: not of classes)."""


def make_metrics(
    given: Iterable[str] | Mapping[str, Metric], classes: int, device: torch.device
) -> dict[str, Metric]:
    """The metrics by name, on the device.

    Raises:
        ValueError: If there is none of a name.
    """
    made = dict[str, Metric]()
    for name in given:
        if isinstance(given, Mapping):
            metric = given[name]
        elif name in METRICS:
            metric = METRICS[name](classes)
        else:
            raise UserError(f"there is no metric {name!r}{nearest(name, METRICS)}")
        if not isinstance(metric, Metric):
            raise UserError(
                f"the metric {name!r} is a {type(metric).__name__}: give a torchmetrics one"
            )
        metric.distributed_available_fn = bool  # False: every rank has seen all batches
        made[name] = metric.to(device)
    return made


def update(metrics: Iterable[Metric], scores: Any, y: Any) -> None:
    """Let metrics see the scores and targets of a batch."""
    for metric in metrics:
        same = isinstance(y, Tensor) and y.is_floating_point() and y.numel() == scores.numel()
        if isinstance(metric, classification.BinaryAUROC | classification.BinaryF1Score):
            if scores.ndim == 2 and scores.shape[1] == 2:
                metric.update(scores.softmax(1)[:, 1], y)
            else:
                metric.update(scores.flatten().sigmoid(), y.flatten().long())
        else:
            metric.update(scores, like(y, scores) if same else y)


def results(metrics: Mapping[str, Metric]) -> dict[str, float]:
    """The values of metrics, which start anew afterwards."""
    values = {name: float(metric.compute()) for name, metric in metrics.items()}
    for metric in metrics.values():
        metric.reset()
    return values
