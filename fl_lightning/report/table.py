"""Comparisons as tables, for terminals, Markdown and LaTeX."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from pandas import DataFrame, Series
from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from fl_lightning.report.comparison import Comparison
from fl_lightning.report.score import (
    BEST,
    LAST,
    SECONDS,
    TAIL,
    Score,
    megabytes_to,
    own_models,
    rounds_to,
)


@dataclass(frozen=True)
class Table:
    """Text in rows and columns.

    Attributes:
        headings: One per column.
        rows: The cells.
        caption: The text below.
        best: Cells in bold, as (row, column).
    """

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""
    best: frozenset[tuple[int, int]] = frozenset()

    def markdown(self) -> str:
        """The table in Markdown, without caption."""
        headings, *rows = [[cell.replace("|", r"\|") for cell in line] for line in self._lines()]
        lines = headings, *self._marked("**{}**", rows)
        head, *body = [f"| {' | '.join(line)} |" for line in lines]
        return "\n".join([head, "|---" * len(self.headings) + "|", *body])

    def with_caption(self) -> str:
        """The table in Markdown, with the caption below."""
        return f"{self.markdown()}\n\n{self.caption}"

    def latex(self) -> str:
        """The table in LaTeX with the package booktabs."""
        headings, *rows = self._lines()
        frame = DataFrame(rows, columns=headings)
        style = frame.style.hide(axis="index").format(escape="latex")
        style = style.format_index(escape="latex", axis="columns")
        for row, column in self.best:
            style = style.set_properties(([row], [headings[column]]), textbf="--rwrap")
        text = style.to_latex(hrules=True, column_format="l" * len(self.headings))
        return f"% {self.caption}\n" + text.replace("±", r"$\pm$").rstrip()

    def show(self) -> None:
        """Print the table as wide as the terminal, or as Markdown into a file."""
        if not sys.stdout.isatty():
            print(self.with_caption())
            return
        table = RichTable(caption=escape(self.caption) or None)
        for heading in self.headings:
            table.add_column(heading, no_wrap=heading == self.headings[0], overflow="fold")
        rows = [[escape(cell.strip("`")) for cell in row] for row in self.rows]
        for row in self._marked("[bold]{}[/bold]", rows):
            table.add_row(*row)
        Console().print(table)

    def _lines(self) -> list[list[str]]:
        """Headings and rows; a line break within a name would end a row of a document."""
        return [[" ".join(cell.split()) for cell in line] for line in (self.headings, *self.rows)]

    def _marked(self, bold: str, rows: Sequence[Sequence[str]]) -> list[list[str]]:
        return [
            [bold.format(cell) if (r, c) in self.best else cell for c, cell in enumerate(row)]
            for r, row in enumerate(rows)
        ]


def scores_table(comparison: Comparison, targets: Sequence[float] = ()) -> Table:
    """One row per experiment: what distinguishes it, and its scores as mean ± deviation over seeds.

    The best of the experiments that differ in their method alone are bold.

    Args:
        comparison: The experiments.
        targets: Test accuracies in percent; rounds and megabytes to reach each get columns.
    """
    runs, differing = comparison.runs, comparison.differing
    to_targets = [score(target) for target in targets for score in (rounds_to, megabytes_to)]
    scores = [LAST, BEST, TAIL, *to_targets, *own_models(runs), SECONDS]
    frame = comparison.options[[o for o in differing if o != "rounds"]].fillna("")
    frame.insert(0, "method", comparison.methods())
    frame["seeds"] = [run.options["seed"] for run in runs]
    frame["rounds"] = [run.rounds for run in runs]
    how: dict[Any, Any] = {**dict.fromkeys(frame, "first"), "seeds": _list, "rounds": _span}
    for score in scores:
        frame[score.name] = [score.of(run) for run in runs]
        how[score.name] = score.format
    groups = frame.groupby(comparison.labels(), sort=False)
    cells = groups.agg(how)
    best = DataFrame(False, index=cells.index, columns=cells.columns)
    set_ups = Series(comparison.set_ups()).groupby(comparison.labels(), sort=False).first()
    for score in scores:
        means = groups[score.name].agg(score.mean)
        best[score.name] = means.groupby(set_ups).transform(_best, score)
    return _table(cells, best, _caption(comparison))


def pivot_table(comparison: Comparison, option: str, score: Score) -> Table:
    """One row per method and one column per value of `option`, as in papers.

    Raises:
        ValueError: If the experiments do not differ in the option.
    """
    values = comparison.headings(option)
    frame = DataFrame({"method": comparison.labels(option), "value": values})
    frame["score"] = [score.of(run) for run in comparison.runs]

    def table(how: Callable[["Series[float]"], Any]) -> DataFrame:
        cells = frame.pivot_table("score", "method", "value", how, sort=False, observed=True)
        return cells[[*values.categories]]

    cells, best = table(score.format).fillna(""), table(score.mean).apply(_best, args=(score,))
    cells.insert(0, "method", cells.index)
    best.insert(0, "method", False)
    return _table(cells, best, f"{score.name}: {_caption(comparison)}")


def _best(means: "Series[float]", score: Score) -> "Series[bool]":
    """Mark the best of several means; nothing if there is no choice."""
    best = means.max() if score.higher_is_better else means.min()
    return (means == best) & (means.count() > 1) & (score.higher_is_better is not None)


def _table(cells: DataFrame, best: DataFrame, caption: str) -> Table:
    marked = frozenset((int(row), int(column)) for row, column in np.argwhere(best.to_numpy(bool)))
    return Table([*map(str, cells)], cells.to_numpy().tolist(), caption, marked)


def _caption(comparison: Comparison) -> str:
    several = len(set(comparison.labels())) < len(comparison.runs)
    return "test accuracy of the global model" + ", mean ± standard deviation over seeds" * several


def _list(seeds: "Series[int]") -> str:
    return ",".join(map(str, sorted(seeds)))


def _span(rounds: "Series[int]") -> str:
    low, high = rounds.min(), rounds.max()
    return str(low) if low == high else f"{low} to {high}"
