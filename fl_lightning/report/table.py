"""Comparisons as tables, for terminals, Markdown and LaTeX."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from fl_lightning.report.comparison import Comparison, Entry, told
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
        headings: One a column.
        rows: Cells, as many in each row.
        caption: Stands below.
        best: Cells, as (row, column), that are set in bold.
    """

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""
    best: frozenset[tuple[int, int]] = frozenset()

    def markdown(self) -> str:
        """For a README."""
        lines = ["| " + " | ".join(self.headings) + " |", "|---" * len(self.headings) + "|"]
        return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in self._marked("**{}**")])

    def with_caption(self) -> str:
        """The same with the caption below."""
        return f"{self.markdown()}\n\n{self.caption}"

    def latex(self) -> str:
        """For a paper, with the package booktabs."""
        rows = [[_escaped(cell) for cell in row] for row in self.rows]
        body = [" & ".join(row) + r" \\" for row in self._marked(r"\textbf{{{}}}", rows)]
        head = " & ".join(map(_escaped, self.headings)) + r" \\"
        begin = rf"\begin{{tabular}}{{{'l' * len(self.headings)}}}"
        lines = [
            f"% {self.caption}",
            begin,
            r"\toprule",
            head,
            r"\midrule",
            *body,
            r"\bottomrule",
            r"\end{tabular}",
        ]
        return "\n".join(lines)

    def show(self) -> None:
        """Print it as wide as the terminal is, or as Markdown where there is none."""
        if not sys.stdout.isatty():
            print(self.with_caption())
            return
        table = RichTable(caption=escape(self.caption) or None)
        for heading in self.headings:
            table.add_column(heading, no_wrap=heading == self.headings[0], overflow="fold")
        for row in self._marked(
            "[bold]{}[/bold]", [[escape(cell.strip("`")) for cell in row] for row in self.rows]
        ):
            table.add_row(*row)
        Console().print(table)

    def _marked(self, bold: str, rows: Sequence[Sequence[str]] | None = None) -> list[list[str]]:
        rows = self.rows if rows is None else rows
        return [
            [bold.format(cell) if (r, c) in self.best else cell for c, cell in enumerate(row)]
            for r, row in enumerate(rows)
        ]


def scores_table(comparison: Comparison, targets: Sequence[float] = ()) -> Table:
    """One row an experiment: in what it differs from the others, and its scores, as mean ± deviation over seeds.

    Args:
        comparison: The experiments.
        targets: Test accuracies in percent; how many rounds and megabytes it takes to reach each is
            told too.
    """
    entries = comparison.entries
    runs = [run for entry in entries for run in entry.runs]
    to_targets = [
        score for target in targets for score in (rounds_to(target), megabytes_to(target))
    ]
    scores = [LAST, BEST, TAIL, *to_targets, *own_models(runs), SECONDS]
    ways = [option for option in comparison.differing if option != "rounds"]  # a column of its own
    front = ["method", *ways, "seeds", "rounds"]
    rows = [
        [
            comparison.method(entry),
            *(told(entry.options[option]) if option in entry.options else "" for option in ways),
            ",".join(map(str, entry.seeds)),
            _span([run.rounds for run in entry.runs]),
            *(score.shown(entry.runs) for score in scores),
        ]
        for entry in entries
    ]
    alike = [
        [e if comparison.set_up(e) == set_up else None for e in entries]
        for set_up in comparison.set_ups
    ]
    best = {
        (r, len(front) + c)
        for c, score in enumerate(scores)
        for rivals in alike
        for r in _best(score, rivals)
    }
    return Table(
        [*front, *(score.name for score in scores)], rows, _caption(comparison), frozenset(best)
    )


def across_table(comparison: Comparison, option: str, score: Score) -> Table:
    """One row a method, one column for each value of `option`, as papers have it.

    Raises:
        ValueError: If the experiments do not differ in the option.
    """
    values, entries = comparison.across(option)
    rows = [
        [label, *(score.shown(e.runs) if e else "" for e in row)] for label, row in entries.items()
    ]
    best = {
        (r, c)
        for c, column in enumerate(zip(*entries.values(), strict=True), 1)
        for r in _best(score, column)
    }
    return Table(
        ["method", *values], rows, f"{score.name}: {_caption(comparison)}", frozenset(best)
    )


def _best(score: Score, entries: Sequence[Entry | None]) -> list[int]:
    """Which entries are best; none where there is nothing to choose from."""
    means = {
        k: mean for k, e in enumerate(entries) if e and (mean := score.mean(e.runs)) is not None
    }
    if len(means) < 2 or score.higher_is_better is None:
        return []
    best = (max if score.higher_is_better else min)(means.values())
    return [k for k, mean in means.items() if mean == best]


def _caption(comparison: Comparison) -> str:
    several = any(len(entry.runs) > 1 for entry in comparison.entries)
    return "test accuracy of the global model" + ", mean ± standard deviation over seeds" * several


def _span(numbers: Sequence[int]) -> str:
    low, high = min(numbers), max(numbers)
    return str(low) if low == high else f"{low} to {high}"


def _escaped(text: str) -> str:
    for special in "&%_#${}":
        text = text.replace(special, "\\" + special)
    return text.replace("±", r"$\pm$")
