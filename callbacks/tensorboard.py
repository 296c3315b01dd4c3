"""TensorBoard: accuracy and losses first, constants as hyper-parameters, the partition."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.loggers.tensorboard import TensorBoardLogger
from lightning.fabric.utilities.rank_zero import rank_zero_only
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import MaxNLocator
from torch.utils.tensorboard.summary import hparams
from torch.utils.tensorboard.writer import FileWriter

from fl_lightning.data import Partition
from fl_lightning.federation.federation import Federation, Metrics
from fl_lightning.federation.sampling import SizeWeightedSampling, UniformSampling
from fl_lightning.runs.run import read_scalars

TAGS = {
    "test/accuracy": "Accuracy/test",
    "test/loss": "Loss/test",
    "val/accuracy": "Accuracy/val",
    "val/loss": "Loss/val",
    "train/loss": "Loss/train",
}
"""Renamed tags. TensorBoard sorts tags, capitals first, and opens the first two groups."""

BEST = "Accuracy/best"
"""The running maximum of `Accuracy/test`, for HPARAMS, which shows the last value of a tag."""

SUFFIX = ".options"
"""End of the names of event files with options."""

SHOWN_CLIENTS = 1000
"""Most clients in the picture of the partition, which has about as many columns of pixels."""


class TensorBoardScalars(TensorBoardLogger):
    """Fabric's logger with the tags of `TAGS` and `BEST`, without constants.

    Args:
        folder: The run's folder.
        after: Rounds that count; later ones of an earlier attempt are purged.

    Attributes:
        constants: Tags that are not logged, see `TensorBoardSummary`.
    """

    def __init__(self, folder: Path, after: int = 0):
        purge = after + 1 if after else 0
        super().__init__(folder, name="", version="", default_hp_metric=False, purge_step=purge)
        self.constants: frozenset[str] = frozenset()
        self._best = -inf
        with suppress(OSError, ValueError):  # no table yet, or a damaged one
            accuracies = read_scalars(folder / "metrics.csv").get("test/accuracy", {})
            self._best = max((a for k, a in accuracies.items() if k <= after), default=-inf)

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Log what may change, with the best accuracy so far."""
        shown = {TAGS.get(tag, tag): v for tag, v in metrics.items() if tag not in self.constants}
        if "test/accuracy" in metrics:
            shown[BEST] = self._best = max(self._best, metrics["test/accuracy"])
        super().log_metrics(shown, step)

    @rank_zero_only
    def save(self) -> None:
        """Flush. The writer's file, made by the first scalar, must follow that of the options."""
        if self._experiment is not None:
            super().save()


@dataclass(eq=False)
class TensorBoardSummary:
    """Fills the HPARAMS tab with the options, and the IMAGES tab with the partition.

    Args:
        options: The run's options, flat.
        partition: The partition of the training set.
        y: Labels of the training set, (n,).
        classes: The names of the classes.
    """

    options: Mapping[str, Any]
    partition: Partition
    y: torch.Tensor
    classes: tuple[str, ...]
    _written: bool = field(default=False, init=False)

    def on_round_end(self, federation: Federation, metrics: Metrics) -> None:
        """Write options and constants in the first round of every start, and the partition once."""
        if self._written or not federation.fabric.is_global_zero:
            return
        self._written = True
        constants = {tag: metrics[tag] for tag in constant_tags(federation)}
        for logger in federation.fabric.loggers:
            if isinstance(logger, TensorBoardScalars):
                logger.constants = frozenset(constants)
                write_options(Path(logger.log_dir), {**self.options, **constants})
                if federation.round == 1:
                    clients = len(self.partition)
                    first = self.partition.subset(torch.arange(min(clients, SHOWN_CLIENTS)))
                    histogram = first.histogram(self.y, len(self.classes))
                    figure = partition_heat_map(histogram, self.classes, clients)
                    logger.experiment.add_figure("partition", figure, 0)


def constant_tags(federation: Federation) -> list[str]:
    """Tags whose values cannot change in this run."""
    rates = {federation.schedule(round, 0) for round in range(federation.rounds)}
    fixed = isinstance(federation.sampler, UniformSampling | SizeWeightedSampling)
    return ["local/lr"] * (len(rates) == 1) + ["comm/uplink_mb", "comm/downlink_mb"] * fixed


def write_options(folder: Path, options: Mapping[str, Any]) -> None:
    """Write a run's row under HPARAMS. Earlier ones are deleted: TensorBoard takes the first one.

    The description of the table, the first summary of `hparams`, is left out. TensorBoard then
    makes it from all runs: options that differ come first, and every scalar is a metric.
    """
    earlier = list(folder.glob(f"events.out.tfevents.*{SUFFIX}"))
    plain = bool | int | float | str
    simple = {k: v if isinstance(v, plain) else str(v) for k, v in options.items()}
    writer = FileWriter(str(folder), filename_suffix=SUFFIX)
    for summary in hparams(simple, {})[1:]:
        writer.add_summary(summary)
    writer.close()
    for file in earlier:
        file.unlink()


def partition_heat_map(
    histogram: torch.Tensor, classes: tuple[str, ...], of: int | None = None
) -> Figure:
    """A heat map of samples, (clients, classes); of the first clients if there are `of` in all."""
    clients = len(histogram)
    shown = f"each of {clients}" if of in (None, clients) else f"the first {clients} of {of}"
    width = max(6.0, min(14.0, 2 + clients / 9))
    figure = Figure(figsize=(width, max(3.0, min(9.0, 1.5 + len(classes) / 5))), dpi=110)
    axes = figure.subplots()
    figure.colorbar(draw_heat_map(axes, histogram, classes), ax=axes, label="samples")
    axes.set_title(f"samples of each class on {shown} clients")
    figure.tight_layout()
    return figure


def draw_heat_map(
    axes: Axes, histogram: torch.Tensor, classes: tuple[str, ...], most: int | None = None
) -> AxesImage:
    """Draw samples by client and class; `most` has the darkest color (default: the largest)."""
    style: dict[str, Any] = {"aspect": "auto", "cmap": "magma_r", "interpolation": "nearest"}
    image = axes.imshow(histogram.T.numpy(), vmin=0, vmax=most, **style)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set(xlabel="client", ylabel="class")
    if len(classes) <= 30:
        axes.set_yticks(range(len(classes)), labels=list(classes))
    return image
