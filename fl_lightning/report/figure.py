"""Curves of experiments over rounds."""

from collections.abc import Sequence
from math import ceil
from statistics import fmean, stdev
from textwrap import fill
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, PercentFormatter

from fl_lightning.report.comparison import Comparison, Entry

COLOURS = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442"
"""Of Okabe and Ito, which the colour-blind can tell apart."""
STROKES = "-", "--", "-.", ":"


def curves(comparison: Comparison, tag: str = "test/accuracy", across: str | None = None) -> Figure:
    """Mean over seeds by round, in a band of one standard deviation; a panel for each value of the option `across`.

    Raises:
        ValueError: If a run has not recorded the tag, or the experiments do not differ in the
            option.
    """
    tags = {
        tag
        for entry in comparison.entries
        for run in entry.runs
        for tag, values in run.scalars.items()
        if values
    }
    if tag not in tags:
        raise ValueError(f"no run has recorded {tag}: there are {', '.join(sorted(tags))}")
    panels, lines = comparison.across(across) if across else ([""], comparison.listed())
    width, labels = 1.0 + 4.5 * len(panels), [fill(label, 50 * len(panels)) for label in lines]
    # labels abreast in the legend, which is below: some 13 characters an inch, and 5 for the stroke
    abreast = max(1, min(len(lines), int(13 * width) // (max(map(len, labels)) + 5)))
    size = (
        width,
        3.2 + 0.25 * ceil(len(lines) / abreast) * max(label.count("\n") + 1 for label in labels),
    )
    figure = Figure(figsize=size, dpi=150, layout="constrained")
    every: Sequence[Axes] = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for place, entries in enumerate(lines.values()):
        for axes, entry in zip(every, entries, strict=True):
            if entry:
                _draw(axes, entry, tag, _stroke(place))
    for axes, title in zip(every, panels, strict=True):
        axes.set(xlabel="round", title=title)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        axes.grid(alpha=0.25)
    every[0].set_ylabel(tag)
    if "accuracy" in tag:
        every[0].yaxis.set_major_formatter(PercentFormatter(1.0))
    keys = [Line2D([], [], **_stroke(place), label=label) for place, label in enumerate(labels)]
    figure.legend(handles=keys, loc="outside lower center", ncols=abreast, frameon=False)
    return figure


def _stroke(place: int) -> dict[str, Any]:
    """How the line in that place of the legend is drawn."""
    turn, colour = divmod(place, len(COLOURS))
    return {"color": COLOURS[colour], "linestyle": STROKES[turn % len(STROKES)], "linewidth": 1.4}


def _draw(axes: Axes, entry: Entry, tag: str, stroke: dict[str, Any]) -> None:
    """One experiment; in each round the runs that have come so far."""
    recorded = [run.scalars.get(tag, {}) for run in entry.runs]
    rounds = sorted({k for values in recorded for k in values})
    values = [[values[k] for values in recorded if k in values] for k in rounds]
    means = [fmean(v) for v in values]
    axes.plot(rounds, means, marker="o" if len(rounds) == 1 else None, **stroke)
    if len(recorded) > 1:
        spreads = [stdev(v) if len(v) > 1 else 0.0 for v in values]
        low = [mean - spread for mean, spread in zip(means, spreads, strict=True)]
        high = [mean + spread for mean, spread in zip(means, spreads, strict=True)]
        axes.fill_between(rounds, low, high, color=stroke["color"], alpha=0.18, linewidth=0)
