"""Figures of runs and data, for notebooks and scripts: `fl.plot`."""

from math import ceil

from pandas import DataFrame
from torch import Tensor

from fl_lightning.callbacks.display import MOST_SHOWN
from fl_lightning.data import FederatedData
from fl_lightning.errors import UserError
from fl_lightning.lab.commands.partition import Scheme
from fl_lightning.lab.commands.partition import figure as schemes
from fl_lightning.lab.displayed import Figure
from fl_lightning.lab.report import compare, main_tag
from fl_lightning.lab.report import curves as drawn
from fl_lightning.runs.chosen import number_names
from fl_lightning.runs.run import Run


def curves(*runs: Run, tag: str | None = None, smooth: int = 1) -> Figure:
    """Draw a scalar of runs by round; runs that differ only in their seed are one curve.

    Args:
        *runs: What `FederatedTrainer.fit` returned, or `Run.read(folder)`.
        tag: The scalar, such as `train_loss`; by default the test accuracy, or the first score of
            runs without one.
        smooth: Each point is the mean of this many evaluations.

    Raises:
        UserError: If these are no runs, or none has recorded the scalar.
    """
    if not runs or not all(isinstance(run, Run) for run in runs):
        raise UserError("curves takes runs: write curves(*runs) for a list of them")
    return drawn(compare(runs, keep_all=True), tag or main_tag(runs), smooth)


def clients(scores: DataFrame) -> Figure:
    """Draw a histogram over clients of each score.

    Args:
        scores: What `trainer.test(data=data, per_client=True)` returned, one row a client.
    """
    numbers = scores.select_dtypes("number") if isinstance(scores, DataFrame) else ()
    names = [name for name in numbers if name not in ("client", "samples")]
    if not names:
        raise UserError("there are no scores: give the frame of trainer.test(..., per_client=True)")
    figure = Figure((4.0 * len(names), 3.0), dpi=110, layout="constrained")
    for name, axes in zip(names, figure.subplots(1, len(names), squeeze=False)[0], strict=True):
        axes.hist(scores[name].dropna(), bins=max(5, ceil(len(scores) ** 0.5)))
        axes.set(xlabel=str(name), ylabel="clients")
        axes.axvline(scores[name].mean(), color="black", linestyle="--", linewidth=1)
    return figure


def partition(data: FederatedData) -> Figure:
    """Draw which client holds what: classes as a heat map, and sizes, or sizes alone.

    Args:
        data: Whose target is one class a row, of at most `MOST_SHOWN`, for the heat map.
    """
    if not isinstance(data, FederatedData):
        raise UserError("partition takes FederatedData, whose rows have clients")
    y = data.divided(data.train)[1]
    y = y.long() if isinstance(y, Tensor) and not y.is_floating_point() else y
    names = data.classes or number_names(y)
    if not 0 < len(names) <= MOST_SHOWN:
        figure = Figure((5.0, 3.0), dpi=110, layout="constrained")
        axes = figure.subplots()
        axes.hist(data.partition.sizes.numpy(), bins=25)
        axes.set(xlabel="rows of a client", ylabel="clients")
        return figure
    counts = data.partition.histogram(y, len(names))
    return schemes([Scheme(f"{data.num_clients:,} clients", counts, names)])
