"""What TensorBoard shows beside the scalars: hyper-parameters and the partition."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.loggers.tensorboard import TensorBoardLogger
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch.utils.tensorboard.summary import hparams
from torch.utils.tensorboard.writer import FileWriter

from fl_lightning.data import Partition
from fl_lightning.federation.federation import Federation

SUFFIX = ".options"
"""How the names of files with options end."""

SHOWN_CLIENTS = 1000
"""About as many as the picture has columns of pixels."""


class TensorBoardSummary:
    """Fills the HPARAMS tab and shows which client holds how much of which class, in the IMAGES tab.

    Args:
        options: The run's options, flat.
        partition: Who holds what.
        y: Labels of the training set, (n,).
        classes: The names of the classes.
    """

    def __init__(
        self,
        options: Mapping[str, Any],
        partition: Partition,
        y: torch.Tensor,
        classes: tuple[str, ...],
    ):
        self.options, self.partition, self.y, self.classes = options, partition, y, classes

    def on_fit_start(self, federation: Federation) -> None:
        """On rank 0, write the options of every start anew, and the partition once."""
        for logger in federation.fabric.loggers if federation.fabric.is_global_zero else ():
            if isinstance(logger, TensorBoardLogger):
                self._write_options(Path(logger.log_dir))
                if not federation.round:
                    first = self.partition.subset(
                        torch.arange(min(len(self.partition), SHOWN_CLIENTS))
                    )
                    histogram = first.histogram(self.y, len(self.classes))
                    figure = partition_heat_map(histogram, self.classes, len(self.partition))
                    logger.experiment.add_figure("partition", figure, 0)

    def _write_options(self, folder: Path) -> None:
        """Into a file of their own, in place of an earlier one: TensorBoard takes the first options that it finds."""
        earlier = list(folder.glob(f"events.out.tfevents.*{SUFFIX}"))
        simple = {
            k: v if isinstance(v, bool | int | float | str) else str(v)
            for k, v in self.options.items()
        }
        writer = FileWriter(str(folder), filename_suffix=SUFFIX)
        for summary in hparams(simple, {"test/accuracy": 0.0, "test/loss": 0.0, "train/loss": 0.0}):
            writer.add_summary(summary)
        writer.close()
        for file in earlier:
            file.unlink()


def partition_heat_map(
    histogram: torch.Tensor, classes: tuple[str, ...], of: int | None = None
) -> Figure:
    """A heat map of samples by client and class.

    Args:
        histogram: Samples, (clients, classes).
        classes: The names of the classes.
        of: How many clients there are, if these are the first of more.
    """
    clients = len(histogram)
    whose = (
        f"each of {clients} clients"
        if of in (None, clients)
        else f"the first {clients} of {of} clients"
    )
    figure = Figure(
        figsize=(max(6.0, min(14.0, 2 + clients / 9)), max(3.0, min(9.0, 1.5 + len(classes) / 5))),
        dpi=110,
    )
    axes = figure.subplots()
    image = axes.imshow(histogram.T.numpy(), aspect="auto", cmap="magma_r", interpolation="nearest")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set(xlabel="client", ylabel="class", title=f"samples of each class on {whose}")
    if len(classes) <= 30:
        axes.set_yticks(range(len(classes)), labels=list(classes))
    figure.colorbar(image, ax=axes, label="samples")
    figure.tight_layout()
    return figure
