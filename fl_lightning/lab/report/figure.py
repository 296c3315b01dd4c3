"""Figures of runs: curves over rounds, and a score against an option."""

from collections.abc import Callable
from fnmatch import filter as matching
from itertools import cycle, product
from math import ceil, isnan, nan
from textwrap import fill
from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, PercentFormatter
from pandas import Categorical, DataFrame, concat, to_numeric

from fl_lightning.algorithms.registry import paper_name
from fl_lightning.errors import UserError
from fl_lightning.lab.displayed import Figure
from fl_lightning.lab.report.comparison import Comparison
from fl_lightning.lab.report.score import Score
from fl_lightning.lab.report.score import score as make_score

COLORS = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442"
"""The palette of Okabe and Ito, which the color-blind can tell apart."""
MOST_PANELS_ABREAST = 4
STROKES = tuple(
    {"linestyle": style, "color": color, "linewidth": 1.4}
    for style, color in product(("-", "--", "-.", ":"), COLORS)
)


def curves(comparison: Comparison, tag: str = "test/accuracy", smooth: int = 1) -> Figure:
    """Draw the mean over seeds by round, in a band of one standard deviation, a panel per column.

    Args:
        comparison: The runs.
        tag: The scalar, or a pattern such as test/class_* with a line for each that matches.
        smooth: Each point is the mean of this many evaluations, the last one that of its round.

    Raises:
        UserError: If no run has recorded the tag.
    """
    every = [of for run in comparison.runs for of in run.scalars.items()]
    recorded = sorted({tag for tag, of in every if not all(map(isnan, of.values()))})
    if not (tags := [tag] if tag in recorded else matching(recorded, tag)):
        raise UserError(f"no run has recorded {tag}: there are {', '.join(recorded)}")
    points, panels = [], comparison.column_names
    for run, row, panel in zip(comparison.runs, comparison.row_names, panels, strict=True):
        for one in (one for one in tags if one in run.metrics):
            y = run.metrics[one].dropna().rolling(smooth, min_periods=1).mean()
            line = f"{paper_name(row)} {one}" if len(tags) > 1 else paper_name(row)
            points.append(DataFrame({"x": y.index, "y": y, "line": line, "panel": panel}))
    frame = concat(points)
    frame["panel"] = Categorical(frame["panel"], panels.categories)

    def draw(axes: Axes, mean: Any, deviation: Any, stroke: dict[str, Any]) -> None:
        axes.plot(mean.index, mean, marker="o" if len(mean) == 1 else None, **stroke)
        if deviation.any():
            band = {"color": stroke["color"], "alpha": 0.18, "linewidth": 0}
            axes.fill_between(mean.index, mean - deviation, mean + deviation, **band)

    figure = _panels(frame, draw, xlabel="round", ylabel=tag.replace("/", " "))
    for axes in figure.axes:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        if "accuracy" in tag:
            axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    return figure


def against(
    comparison: Comparison, option: str, score: Score | str = "last", log: bool = False
) -> Figure:
    """Draw a score against an option: mean and standard deviation over seeds, a panel per column.

    A method that does not have the option is a horizontal line. A point is left out if one of its
    runs lacks the score or did not reach its target.

    Args:
        comparison: The runs. The option is one of the columns; the others are panels.
        option: The option.
        score: The score or its name.
        log: Whether the axis of the option is logarithmic.

    Raises:
        UserError: If the option is none of the columns.
    """
    if option not in comparison.columns:
        raise UserError(f"{option} is none of the columns: {', '.join(comparison.columns)}")
    panels = comparison.headings([o for o in comparison.columns if o != option])
    made = make_score(score, comparison.runs)
    texts = comparison.options[option]
    places = to_numeric(texts, errors="coerce")
    names = [] if places.notna().equals(texts != "") else [*texts[texts != ""].unique()]
    if names:  # not numbers: one place each
        places = texts.map({name: place for place, name in enumerate(names)})
    results = map(made.of, comparison.runs)
    values = [result.value if result.reached else nan for result in results]
    lines = [*map(paper_name, comparison.row_names)]
    frame = DataFrame({"x": places, "y": values, "line": lines, "panel": panels})

    def draw(axes: Axes, mean: Any, deviation: Any, stroke: dict[str, Any]) -> None:
        if mean.index.hasnans:
            axes.axhline(mean.iloc[-1], **stroke)
        else:
            axes.errorbar(mean.index, mean, deviation, marker="o", capsize=3, **stroke)

    label = "test accuracy, " * made.name.endswith(", %") + made.name
    figure = _panels(frame, draw, xlabel=option, ylabel=label)
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
    points: DataFrame,
    draw: Callable[[Axes, Any, Any, dict[str, Any]], None],
    **axis_labels: str,
) -> Figure:
    """Draw a panel for each `panel` of the points, in it each `line`, and one legend below."""
    titles, lines = points["panel"].cat.categories, points["line"].unique()
    strokes = dict(zip(lines, cycle(STROKES), strict=False))
    wide = min(len(titles), MOST_PANELS_ABREAST)
    high = ceil(len(titles) / wide)
    width = 1.0 + 4.5 * wide
    labels = [fill(line, 50 * wide) for line in lines]
    # labels next to each other in the legend: some 13 characters an inch, and 5 for the stroke
    abreast = max(1, min(len(labels), int(13 * width) // (max(map(len, labels)) + 5)))
    of_legend = ceil(len(labels) / abreast) * max(label.count("\n") + 1 for label in labels)
    size = width, 3.2 * high + 0.25 * of_legend
    figure = Figure(figsize=size, dpi=150, layout="constrained")
    every = figure.subplots(high, wide, sharey=True, squeeze=False).flatten()
    for unused in every[len(titles) :]:
        unused.remove()
    panels = dict(zip(titles, every, strict=False))
    for (title, line), part in points.groupby(["panel", "line"], sort=False, observed=True):
        of_line = part.groupby("x", dropna=False)["y"]
        mean = of_line.agg(lambda y: y.mean(skipna=False))
        draw(panels[title], mean, of_line.std().fillna(0.0), strokes[line])
    for title, axes in panels.items():
        axes.set(title=title, **axis_labels)
        axes.label_outer()
        axes.grid(alpha=0.25)
    keys = [Line2D([], [], **strokes[k], label=v) for k, v in zip(lines, labels, strict=True)]
    figure.legend(handles=keys, loc="outside lower center", ncols=abreast, frameon=False)
    return figure
