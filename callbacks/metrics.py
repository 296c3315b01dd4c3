"""Metrics of a model's outputs by name: torchmetrics objects that see one batch after another."""

from collections.abc import Callable, Iterable, Mapping
from inspect import signature
from math import nan
from typing import Any
from warnings import catch_warnings, simplefilter

import torch
import torchmetrics
from torch import Tensor
from torchmetrics import Metric, classification
from torchmetrics.classification import MulticlassF1Score
from torchmetrics.text import Perplexity
from torchmetrics.utilities import dim_zero_cat

from fl_lightning.core.losses import IGNORED, TaskLoss, cross_entropy, like
from fl_lightning.core.prediction import for_classes, is_right
from fl_lightning.errors import UserError, nearest
from fl_lightning.runs.scalars import higher_is_better


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
        """Count a batch: scores (..., classes) and classes (...). The class -100 does not count.

        Where there is one score for each target, 0 or 1, positive means class 1.
        """
        counts = y != IGNORED
        self.right += (is_right(scores, y) & counts).sum()
        self.seen += counts.sum()

    def compute(self) -> Tensor:
        """The share of all that were counted."""
        return self.right.double() / self.seen


class R2(Metric):
    """The share of the targets' variance that is explained; NaN if they do not differ.

    torchmetrics adds squares in float32, which loses all digits of targets far from 0, and takes
    sums below 1e-4 for 0, so that small targets were explained perfectly.
    """

    higher_is_better = True
    error: Tensor
    total: Tensor
    square: Tensor
    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        for name in ("error", "total", "square", "seen"):
            zero = torch.zeros((), dtype=torch.float64)
            self.add_state(name, zero, dist_reduce_fx="sum")

    def update(self, scores: Tensor, y: Tensor) -> None:
        """Count a batch: numbers (n,) or (n, outputs) and targets like them."""
        if scores.shape != y.shape:
            raise ValueError(f"R2 has numbers {tuple(scores.shape)} for targets {tuple(y.shape)}")
        scores, y = scores.double(), y.double()
        self.error = self.error + (y - scores).square().sum(0)
        self.total, self.square = self.total + y.sum(0), self.square + y.square().sum(0)
        self.seen += len(y)

    def compute(self) -> Tensor:
        """The mean over the outputs whose targets differ."""
        spread = self.square - self.total.square() / self.seen
        differ = spread > 1e-12 * self.square  # the rest is rounding
        return (1 - self.error / spread)[differ].mean()


class BinaryF1(classification.BinaryF1Score):
    """F1 as in torchmetrics, but NaN if class 1 is neither there nor predicted."""

    def compute(self) -> Tensor:
        """The score; torchmetrics gives 0 where nothing is wrong."""
        defined = any(map(dim_zero_cat, (self.tp, self.fp, self.fn)))
        return super().compute() if defined else torch.tensor(nan)


class BinaryAUROC(classification.BinaryAUROC):
    """AUROC as in torchmetrics, but NaN if all samples have one class."""

    def compute(self) -> Tensor:  # type: ignore[override]
        """The area; torchmetrics gives 0 for one class."""
        y = dim_zero_cat(self.target)
        return super().compute() if 0 < y.sum() < len(y) else torch.tensor(nan)


class MulticlassAUROC(classification.MulticlassAUROC):
    """The mean AUROC of the classes that the samples have; NaN if all have one class."""

    def __init__(self, classes: int) -> None:
        super().__init__(classes, average=None)

    def update(self, scores: Tensor, y: Tensor) -> None:
        """Count a batch: scores (n, classes) and classes (n,).

        torchmetrics takes scores for probabilities in each batch in which all lie from 0 to 1.
        """
        super().update(scores.softmax(1), y)

    def compute(self) -> Tensor:  # type: ignore[override]
        """The mean area; torchmetrics gives 0 to a class without samples."""
        y = dim_zero_cat(self.target)
        count = y.bincount(minlength=self.num_classes)
        with catch_warnings():  # of classes that are left out
            simplefilter("ignore")
            return super().compute()[(count > 0) & (count < len(y))].mean()


METRICS: dict[str, Callable[..., Metric]] = {
    "accuracy": Accuracy,
    "auroc": lambda classes: BinaryAUROC() if classes <= 2 else MulticlassAUROC(classes),
    "f1": lambda classes: BinaryF1() if classes <= 2 else MulticlassF1Score(classes),
    "mae": lambda: torchmetrics.MeanAbsoluteError(),
    "mse": lambda: torchmetrics.MeanSquaredError(),
    "perplexity": lambda: Perplexity(ignore_index=IGNORED),
    "r2": R2,
    "rmse": lambda: torchmetrics.MeanSquaredError(squared=False),
}
"""The metrics by name; each maker takes the number of classes if it needs it.

Of more than two classes auroc and f1 are means over them."""


def make_metrics(
    given: Iterable[str] | Mapping[str, Metric], classes: int, device: torch.device
) -> dict[str, Metric]:
    """The metrics by name, on the device; a UserError if there is none of a name."""
    made = dict[str, Metric]()
    for name in given:
        if isinstance(given, Mapping):
            metric = given[name]
        elif name in METRICS:
            make = METRICS[name]
            metric = make(classes) if "classes" in signature(make).parameters else make()
        elif isinstance(name, Metric):
            raise UserError(
                f"metrics holds {name!r:.60}: give objects by name, as metrics={{'mine': ...}}"
            )
        else:
            raise UserError(f"there is no metric {name!r}{nearest(name, METRICS)}")
        if not isinstance(metric, Metric):
            raise UserError(
                f"the metric {name!r} is a {type(metric).__name__}: give a torchmetrics one"
            )
        metric.reset()  # of what an interrupted evaluation has seen
        metric.distributed_available_fn = bool  # False: every rank has seen all batches
        made[name] = metric.to(device)
    return made


def larger_is_better(name: str, metric: Metric | None = None) -> bool:
    """Whether larger values are better: as the metric says, else by its name."""
    said = None if metric is None else metric.higher_is_better
    return higher_is_better(name) if said is None else said


OF_CLASSES = Accuracy, classification.BinaryAUROC, classification.BinaryF1Score


def update(
    metrics: Iterable[Metric], given: Any, targets: Any, loss: TaskLoss = cross_entropy
) -> None:
    """Let metrics see the scores and targets of a batch, as the loss takes them.

    Raises:
        ValueError: If targets of a metric of classes are fractions, or above 1 for one score each;
            or if there are more scores than targets and no classes.
    """
    for metric in metrics:
        ours = isinstance(metric, (*OF_CLASSES, Perplexity))
        scores, y = for_classes(loss, given, targets) if ours else (given, targets)
        tensors = isinstance(scores, Tensor) and isinstance(y, Tensor)
        floating = tensors and y.is_floating_point()
        same = tensors and y.numel() == scores.numel()
        binary = (floating or same) and isinstance(metric, OF_CLASSES)
        if binary and not ((y == 0) | (y == 1) | (y == IGNORED)).all():
            raise ValueError("the targets are numbers, not classes")
        if isinstance(metric, classification.BinaryAUROC | classification.BinaryF1Score):
            if scores.ndim == 2 and scores.shape[1] == 2:
                metric.update(scores.softmax(1)[:, 1], y)
            elif not same:
                raise ValueError("the classes are not known: name them, FederatedData(classes=...)")
            else:
                metric.update(scores.flatten().sigmoid(), y.flatten().long())
        elif same:
            metric.update(scores, like(y, scores) if floating else y.view_as(scores))
        else:
            metric.update(scores, y)


def results(metrics: Mapping[str, Metric]) -> dict[str, float]:
    """The values of metrics, which start anew afterwards."""
    values = {name: computed(metric) for name, metric in metrics.items()}
    for metric in metrics.values():
        metric.reset()
    return values


def computed(metric: Metric) -> float:
    """The value of a metric; NaN where its samples are too few, as one for R2Score."""
    try:
        value = metric.compute()
    except ValueError:
        return nan
    return float(value)
