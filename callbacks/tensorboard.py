"""TensorBoard: accuracy and losses first, the options as hyper-parameters, the partition."""

from collections.abc import Mapping
from contextlib import suppress
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
from torch import Tensor
from torch.utils.tensorboard.summary import hparams
from torch.utils.tensorboard.writer import FileWriter

from fl_lightning.data import Partition
from fl_lightning.runs.scalars import read_scalars

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

EVENTS = "events.out.tfevents."
"""The beginning of the names of event files."""

OPTIONS = f"{EVENTS}0000000000.options"
"""The event file with the options. It is the first, since TensorBoard takes the first options."""

MOST_SHOWN = 1000
"""Most clients, and most classes, in the picture of a partition, which has about as many pixels.
Further clients are left out; with more classes there is no picture."""


class TensorBoard(TensorBoardLogger):
    """Fabric's logger with the tags of `TAGS` and `BEST`, and with HPARAMS and the partition.

    Args:
        folder: The run's folder.
        after: Rounds that count; later ones of an earlier attempt are purged.
    """

    def __init__(self, folder: Path, after: int = 0):
        purge = after + 1 if after else 0
        # Ctrl-C may leave the writer's thread asleep for `flush_secs`, for which `finalize` waits
        super().__init__(
            folder, name="", version="", default_hp_metric=False, purge_step=purge, flush_secs=2
        )
        self._best = -inf
        with suppress(OSError, ValueError):  # no table yet, or a damaged one
            accuracies = read_scalars(folder / "metrics.csv").get("test/accuracy", {})
            self._best = max((a for k, a in accuracies.items() if k <= after), default=-inf)

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Log the scalars, with the best accuracy so far."""
        shown = {TAGS.get(tag, tag): value for tag, value in metrics.items()}
        if "test/accuracy" in metrics:
            shown[BEST] = self._best = max(self._best, metrics["test/accuracy"])
        super().log_metrics(shown, step)

    @rank_zero_only
    def log_hyperparams(self, params: Mapping[str, Any], *_: Any, **__: Any) -> None:  # type: ignore[override]
        """Write the run's row under HPARAMS, in place of an earlier one.

        The description of the table, the first summary of `hparams`, is left out: TensorBoard would
        show the options of that run only, such as those of its algorithm. Now it shows those of all
        runs, and those that differ come first.
        """
        folder, plain = Path(self.log_dir), bool | int | float | str
        writer = FileWriter(str(folder), filename_suffix=".part")
        simple = {name: v if isinstance(v, plain) else str(v) for name, v in params.items()}
        for summary in hparams(simple, {})[1:]:
            writer.add_summary(summary)
        writer.close()
        next(folder.glob(f"{EVENTS}*.part")).replace(folder / OPTIONS)

    @rank_zero_only
    def log_histogram(self, tag: str, values: Tensor, step: int) -> None:
        """Show the distribution of one number for each client, of those that are finite."""
        finite = values[values.isfinite()]
        if len(finite):
            self.experiment.add_histogram(tag, finite, step)

    @rank_zero_only
    def log_partition(self, partition: Partition, y: Tensor, classes: tuple[str, ...]) -> None:
        """Draw the partition of the samples with these labels under IMAGES."""
        if len(classes) > MOST_SHOWN:
            return
        first = partition.subset(torch.arange(min(len(partition), MOST_SHOWN)))
        figure = partition_heat_map(first.histogram(y, len(classes)), classes, len(partition))
        self.experiment.add_figure("partition", figure, 0)


def partition_heat_map(
    histogram: Tensor, classes: tuple[str, ...], of: int | None = None
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
    axes: Axes, histogram: Tensor, classes: tuple[str, ...], most: int | None = None
) -> AxesImage:
    """Draw samples by client and class; `most` has the darkest color (default: the largest)."""
    style: dict[str, Any] = {"aspect": "auto", "cmap": "magma_r", "interpolation": "nearest"}
    image = axes.imshow(histogram.T.numpy(), vmin=0, vmax=most, **style)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set(xlabel="client", ylabel="class")
    if len(classes) <= 30:
        axes.set_yticks(range(len(classes)), labels=list(classes), parse_math=False)
    return image
