"""Curves of experiments over rounds."""

from collections.abc import Sequence
from itertools import product
from math import ceil
from textwrap import fill
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, PercentFormatter
from pandas import DataFrame

from fl_lightning.report.comparison import Comparison
from fl_lightning.runs.run import Run

COLORS = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442"
"""The palette of Okabe and Ito, which the color-blind can tell apart."""
STROKES = tuple(product(("-", "--", "-.", ":"), COLORS))


def curves(comparison: Comparison, tag: str = "test/accuracy", across: str | None = None) -> Figure:
    """Draw the mean over seeds by round, in a band of one standard deviation.

    Args:
        comparison: The experiments.
        tag: The scalar.
        across: An option; each of its values gets a panel.

    Raises:
        ValueError: If no run has recorded the tag, or the experiments do not differ in the option.
    """
    runs = comparison.runs
    tags = sorted({tag for run in runs for tag, values in run.scalars.items() if values})
    if tag not in tags:
        raise ValueError(f"no run has recorded {tag}: there are {', '.join(tags)}")
    columns, rows = comparison.headings(across), comparison.labels(across)
    titles, labels = [*columns.categories], [*dict.fromkeys(rows)]
    width = 1.0 + 4.5 * len(titles)
    wrapped = [fill(label, 50 * len(titles)) for label in labels]
    # labels next to each other in the legend: some 13 characters an inch, and 5 for the stroke
    abreast = max(1, min(len(labels), int(13 * width) // (max(map(len, wrapped)) + 5)))
    lines = ceil(len(labels) / abreast) * max(label.count("\n") + 1 for label in wrapped)
    figure = Figure(figsize=(width, 3.2 + 0.25 * lines), dpi=150, layout="constrained")
    panels = figure.subplots(1, len(titles), sharey=True, squeeze=False)[0]
    for title, axes in zip(titles, panels, strict=True):
        for place, label in enumerate(labels):
            cells = zip(runs, columns, rows, strict=True)
            group = [run for run, *cell in cells if cell == [title, label]]
            if group:
                _draw(axes, group, tag, _stroke(place))
        axes.set(xlabel="round", title=title)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        axes.grid(alpha=0.25)
    panels[0].set_ylabel(tag)
    if "accuracy" in tag:
        panels[0].yaxis.set_major_formatter(PercentFormatter(1.0))
    keys = [Line2D([], [], **_stroke(place), label=label) for place, label in enumerate(wrapped)]
    figure.legend(handles=keys, loc="outside lower center", ncols=abreast, frameon=False)
    return figure


def _stroke(place: int) -> dict[str, Any]:
    """Style of the line in that place of the legend."""
    style, color = STROKES[place % len(STROKES)]
    return {"linestyle": style, "color": color, "linewidth": 1.4}


def _draw(axes: Axes, runs: Sequence[Run], tag: str, stroke: dict[str, Any]) -> None:
    """Draw one experiment, in each round the runs that have recorded it."""
    recorded = DataFrame({k: run.scalars.get(tag, {}) for k, run in enumerate(runs)}).sort_index()
    mean, spread = recorded.mean(axis=1), recorded.std(axis=1).fillna(0.0)
    axes.plot(mean.index, mean, marker="o" if len(mean) == 1 else None, **stroke)
    if recorded.shape[1] > 1:
        low, high = mean - spread, mean + spread
        axes.fill_between(mean.index, low, high, color=stroke["color"], alpha=0.18, linewidth=0)
