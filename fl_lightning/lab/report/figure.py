"""Curves of experiments over rounds."""

from collections.abc import Callable, Sequence
from fnmatch import filter as matching
from itertools import product, zip_longest
from math import ceil
from textwrap import fill
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, PercentFormatter
from pandas import Categorical, DataFrame, Series, to_numeric

from fl_lightning.errors import UserError
from fl_lightning.lab.report.comparison import Comparison
from fl_lightning.lab.report.score import Score
from fl_lightning.lab.report.score import score as make_score

COLORS = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442"
"""The palette of Okabe and Ito, which the color-blind can tell apart."""
MOST_PANELS_ABREAST = 4
STROKES = tuple(product(("-", "--", "-.", ":"), COLORS))


def curves(comparison: Comparison, tag: str = "test/accuracy", smooth: int = 1) -> Figure:
    """Draw the mean over seeds by round, in a band of one standard deviation, a panel per column.

    Args:
        comparison: The runs.
        tag: The scalar, or a pattern such as test/class_* with a line for each that matches.
        smooth: The number of evaluations of which each point is the mean, up to its round.

    Raises:
        ValueError: If no run has recorded the tag.
    """
    runs = comparison.runs
    recorded = sorted({tag for run in runs for tag, values in run.scalars.items() if values})
    if not (tags := [tag] if tag in recorded else matching(recorded, tag)):
        raise UserError(f"no run has recorded {tag}: there are {', '.join(recorded)}")
    lines = [*product(tags, range(len(runs)))]
    rows = [comparison.row_names[run] for _, run in lines]
    if len(tags) > 1:
        rows = [f"{row} {tag}" for row, (tag, _) in zip(rows, lines, strict=True)]
    columns = comparison.column_names.take([run for _, run in lines])
    series = [runs[run].metrics.get(tag, Series(dtype=float)).dropna() for tag, run in lines]
    series = [s.rolling(smooth, min_periods=1).mean() for s in series]

    def draw(axes: Axes, which: Sequence[int], stroke: dict[str, Any]) -> None:
        values = DataFrame({line: series[line] for line in which}).sort_index()
        mean, spread = values.mean(axis=1), values.std(axis=1).fillna(0.0)
        axes.plot(mean.index, mean, marker="o" if len(mean) == 1 else None, **stroke)
        if len(which) > 1:
            low, high = mean - spread, mean + spread
            axes.fill_between(mean.index, low, high, color=stroke["color"], alpha=0.18, linewidth=0)

    figure = _panels(rows, columns, draw, xlabel="round", ylabel=tag)
    for axes in figure.axes:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        if "accuracy" in tag:
            axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    return figure


def against(
    comparison: Comparison, option: str, score: Score | str = "last", log: bool = False
) -> Figure:
    """Draw a score against an option: mean and standard deviation over seeds, a panel per column.

    A method that does not have the option is a horizontal line.

    Args:
        comparison: The runs, in columns by this option and those of the panels.
        option: The option.
        score: The score or its name.
        log: Whether the axis of the option is logarithmic.

    Raises:
        ValueError: If the option is none of the columns.
    """
    if option not in comparison.columns:
        raise UserError(f"{option} is none of the columns: {', '.join(comparison.columns)}")
    panels = comparison.headings([o for o in comparison.columns if o != option])
    made = make_score(score)
    values = [made.of(run).value for run in comparison.runs]
    texts = comparison.options[option]
    places = to_numeric(texts, errors="coerce")
    names = [] if places.notna().equals(texts != "") else [*texts[texts != ""].unique()]
    if names:  # not numbers: one place each
        places = texts.map({name: place for place, name in enumerate(names)})

    def draw(axes: Axes, which: Sequence[int], stroke: dict[str, Any]) -> None:
        points = DataFrame({"x": places, "y": values}).loc[[*which]].groupby("x", dropna=False)["y"]
        mean, spread = points.mean(), points.std().fillna(0.0)
        if mean.index.hasnans:
            axes.axhline(mean.iloc[-1], **stroke)
        else:
            axes.errorbar(mean.index, mean, spread, marker="o", capsize=3, **stroke)

    label = "test accuracy, " * made.name.endswith(", %") + made.name
    figure = _panels(comparison.row_names, panels, draw, xlabel=option, ylabel=label)
    ticks = sorted(places.dropna().unique())
    for axes in figure.axes:
        if log:
            axes.set_xscale("log")
            axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
            axes.minorticks_off()
        if names:
            axes.set_xticks(range(len(names)), names)
    return figure


def _panels(
    rows: Sequence[str],
    columns: "Categorical[str]",
    draw: Callable[[Axes, Sequence[int], dict[str, Any]], None],
    **axis_labels: str,
) -> Figure:
    """Draw a panel for each column and in it a line for each row, with one legend below."""
    titles, labels = [*columns.categories], [*dict.fromkeys(rows)]
    wide = min(len(titles), MOST_PANELS_ABREAST)
    high = ceil(len(titles) / wide)
    width = 1.0 + 4.5 * wide
    wrapped = [fill(label, 50 * wide) for label in labels]
    # labels next to each other in the legend: some 13 characters an inch, and 5 for the stroke
    abreast = max(1, min(len(labels), int(13 * width) // (max(map(len, wrapped)) + 5)))
    lines = ceil(len(labels) / abreast) * max(label.count("\n") + 1 for label in wrapped)
    size = (width, 3.2 * high + 0.25 * lines)
    figure = Figure(figsize=size, dpi=150, layout="constrained")
    panels = figure.subplots(high, wide, sharey=True, squeeze=False).flat
    cells = [*zip(rows, columns, strict=True)]
    for title, axes in zip_longest(titles, panels):
        if title is None:
            axes.remove()
            continue
        for place, label in enumerate(labels):
            if which := [k for k, cell in enumerate(cells) if cell == (label, title)]:
                draw(axes, which, _stroke(place))
        axes.set(title=title, **axis_labels)
        axes.label_outer()
        axes.grid(alpha=0.25)
    keys = [Line2D([], [], **_stroke(place), label=label) for place, label in enumerate(wrapped)]
    figure.legend(handles=keys, loc="outside lower center", ncols=abreast, frameon=False)
    return figure


def _stroke(place: int) -> dict[str, Any]:
    """Style of the line in that place of the legend."""
    style, color = STROKES[place % len(STROKES)]
    return {"linestyle": style, "color": color, "linewidth": 1.4}
