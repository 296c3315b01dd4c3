"""What shows a run: a progress bar, and TensorBoard with scores, options and the partition."""

import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from math import inf, nan
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.loggers.tensorboard import TensorBoardLogger
from lightning.fabric.utilities.rank_zero import rank_zero_only
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import MaxNLocator
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor
from torch.utils.tensorboard.summary import hparams
from torch.utils.tensorboard.writer import FileWriter

from fl_lightning.data import Partition
from fl_lightning.federation.federation import Federation, Metrics
from fl_lightning.runs.scalars import read_scalars

LINES = 20
"""Most plain lines of a run; they replace the live line where there is no terminal."""


class ProgressBar:
    """Shows round, score (the scalar `monitor`), loss, rounds a second and the time left."""

    _live: Progress | None = None
    _score = ""

    def __init__(self, monitor: str = "test/accuracy"):
        self.monitor = monitor

    def on_fit_start(self, federation: Federation) -> None:
        self._from, self._started = federation.round, time.monotonic()
        console = Console(file=sys.stdout)
        if federation.fabric.is_global_zero and console.is_terminal:
            text, bar = TextColumn("{task.description}"), BarColumn(bar_width=24)
            self._live = Progress(text, bar, TimeRemainingColumn(compact=True), console=console)
            rounds, done = federation.rounds, federation.round
            self._task = self._live.add_task("round 0", total=rounds, completed=done)
            self._live.start()

    def on_round_logged(self, federation: Federation, metrics: Metrics) -> None:
        # without uplink nobody trains the global model
        if self.monitor in metrics and federation.cost.uplink:
            name = self.monitor.removeprefix("test/")
            name = "test loss" if name == "loss" else name  # next to that of training
            self._score = f"  {name} {score_text(name, metrics[self.monitor])}"
        if not federation.fabric.is_global_zero:
            return
        if federation.round == 1 and metrics.get("term/clipped") == 1:
            show = self._live.console.print if self._live else print
            fix = "raise --clip-norm, or give the algorithm clips=False"
            show(f"note: every local step of round 1 was clipped: {fix}")
        done, rounds = federation.round, federation.rounds
        speed = (done - self._from) / (time.monotonic() - self._started)
        loss = metrics.get("train/loss", nan)
        text = f"round {done}/{rounds}{self._score}  loss {loss:.3f}  {speed:.2f} rounds/s"
        if self._live:
            self._live.update(self._task, description=text, completed=done)
        elif done % -(-rounds // LINES) == 0 or done == rounds:
            print(f"{text}  {_clock((rounds - done) / speed)} left", flush=True)

    def on_fit_end(self, federation: Federation) -> None:
        self.stop()

    def stop(self) -> None:
        """Restore the terminal, also when the run ends early."""
        if self._live:
            self._live.stop()
            self._live = None


def score_text(tag: str, value: float) -> str:
    """A score as text: an accuracy in percent."""
    return f"{value:.2%}" if "accuracy" in tag else f"{value:.4g}"


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


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
"""The beginning of the names of event files. The time follows, and TensorBoard sorts them."""

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
        self._number_files(folder)

    @rank_zero_only
    def _number_files(self, folder: Path) -> None:
        """Number earlier event files if a clock that went back would sort them behind the next."""
        earlier = sorted(file for file in folder.glob(f"{EVENTS}*") if file.name != OPTIONS)
        if earlier and earlier[-1].name >= f"{EVENTS}{int(time.time())}":
            for number, file in enumerate(earlier, 1):
                file.rename(folder / f"{EVENTS}{number:010d}")

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
        show the options of that run only, such as its algorithm's. Now it shows the options of all
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
