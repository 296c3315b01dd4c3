"""The finished runs of a table in the paper's layout."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import isnan
from statistics import fmean

from pandas import Categorical

from fl_lightning.errors import UserError
from fl_lightning.lab.report.grid import grid
from fl_lightning.lab.report.score import Score
from fl_lightning.lab.report.score import score as make_score
from fl_lightning.lab.report.table import Table
from fl_lightning.lab.sweep.axes import Axis, fitting, joined, set_by
from fl_lightning.lab.sweep.plan import Cell, Job
from fl_lightning.lab.sweep.table_file import TableFile
from fl_lightning.runs.run import Run

Placed = tuple[Cell, Run]


def layout(table: TableFile, jobs: Sequence[Job]) -> list[Table]:
    """Scores of finished runs beside published ones: a table for each score with published ones."""
    placed, notes = _placed(jobs)
    caption = ""
    if tuned := ", ".join(set_by(*table.tune.values())):
        best, more = _best_tuned(placed, make_score(table.scores[0], [run for _, run in placed]))
        if table.chosen is None:
            more += _choices(table, placed, best)
        placed = [(cell, run) for cell, run in placed if best[cell.row, cell.column] == cell.tuned]
        notes, caption = [*notes, *more], f"; best of {tuned} by {table.scores[0]}"
    shortened = {f"{n} of {j.rounds}" for j in jobs if (n := j.config["rounds"]) != j.rounds}
    if shortened:
        left_out = ": not compared with published numbers" * bool(table.published)
        caption += f"; {', '.join(sorted(shortened))} rounds{left_out}"
        table = replace(table, published={})
    if missing := sum(job.state != "finished" for job in jobs):
        caption += f"; {missing} of {len(jobs)} runs are missing"
    labels, several = table.column_labels, len(table.published) > 1
    shown = {s: table.published[s] for s in table.scores if s in table.published}
    known = {s: set().union(*rows.values()) for s, rows in shown.items() if several}
    if not {*labels} & set().union(*known.values()):
        known = {}  # as of columns of another sweep
    if not known and not shown.keys() & {*table.scores[1:]}:
        tables = [_grid(table, placed, table.scores, labels, caption)]
    else:
        parts = {s: [c for c in labels if c in known.get(s, labels)] for s in table.scores}
        tables = [_grid(table, placed, (s,), of, caption) for s, of in parts.items() if of]
    return [replace(tables[0], notes=[*notes, *tables[0].notes]), *tables[1:]]


def _grid(
    table: TableFile,
    placed: Sequence[Placed],
    scores: Sequence[str],
    columns: Sequence[str],
    caption: str,
) -> Table:
    placed = [(cell, run) for cell, run in placed if cell.column in columns]
    rows, known = [cell.row for cell, _ in placed], table.published.get(scores[0], {})
    published = {
        row: {c: number for c, number in known.get(row, {}).items() if c in columns}
        for row in table.rows
    }
    means = {label: fitting(table.column_labels, of) for label, of in table.means.items()}
    shown = grid(
        [run for _, run in placed],
        rows,
        Categorical([cell.column for cell, _ in placed], [*columns]),
        scores,
        published=published,
        means={label: of for label, of in means.items() if of and {*of} <= {*columns}},
        spread=table.spread,
        over=table.over if table.over in rows else "",
    )
    return replace(shown, caption=f"{table.name}: {shown.caption}{caption}")


def choose(table: TableFile, trials: Sequence[Job]) -> tuple[TableFile, list[str]]:
    """The table with the best of the tuned values in each cell alone, and what they are.

    A cell without a finished trial has none.
    """
    placed, notes = _placed(trials)
    best, more = _best_tuned(placed, make_score(table.scores[0], [run for _, run in placed]))
    return replace(table, chosen=best), [*notes, *more, *_choices(table, placed, best)]


def _choices(
    table: TableFile, placed: Sequence[Placed], best: Mapping[tuple[str, str], str]
) -> list[str]:
    """A remark on the best of the tuned values of each cell."""
    notes = list[str]()
    for (row, column), tuned in best.items():
        tried = table.tried(row, column)
        if len(tried) < 2:
            continue
        ends = _ends(tried, tuned)
        ended = {cell.tuned for cell, _ in placed if cell[:2] == (row, column)}
        at = f"; {', '.join(ends)} is the last value tried" if ends else ""
        left = f", of which {len(ended)} have finished" if len(ended) < len(tried) else ""
        notes.append(f"{joined(row, column)}: {tuned}, best of {len(tried)} settings{left}{at}")
    return notes


def _ends(tried: Axis, tuned: str) -> list[str]:
    """The options whose best value is the smallest or largest of three or more."""
    found = list[str]()
    for option, value in tried[tuned].items():
        values = [of[option] for of in tried.values()]
        numbers = all(isinstance(v, int | float) for v in values)
        if numbers and len({*values}) > 2 and value in (min(values), max(values)):
            found.append(f"{option} {value}")
    return found


def _placed(jobs: Sequence[Job]) -> tuple[list[Placed], list[str]]:
    """The finished runs in their cells, and a remark for each that cannot be read."""
    placed, notes = list[Placed](), list[str]()
    for job in (job for job in jobs if job.state == "finished"):
        try:
            run = Run.read(job.folder)
            placed += [(cell, run) for cell in job.cells]
        except ValueError as error:
            notes.append(f"{error}; left out")
    return placed, notes


def _best_tuned(
    placed: Sequence[Placed], score: Score
) -> tuple[dict[tuple[str, str], str], list[str]]:
    """The label of the tuned values whose score is best in each cell, and remarks.

    A value with fewer or other seeds than another value of the cell does not compete. Values with
    which more runs reached the score's target come first; then the mean decides.
    """
    if placed and score.higher_is_better is None:
        raise UserError(
            f"tune chooses by the first score, and whether larger is better of {score.name} is not "
            "known: put one such as last, val/accuracy or test/loss before it"
        )
    cells = defaultdict[tuple[str, str], dict[str, list[Run]]](dict)
    for cell, run in placed:
        cells[cell.row, cell.column].setdefault(cell.tuned, []).append(run)
    best, notes = dict[tuple[str, str], str](), list[str]()
    for labels, values in cells.items():
        seeds = {value: sorted(r.config["seed"] for r in of) for value, of in values.items()}
        most = max(seeds.values(), key=len)
        for value in (value for value in values if seeds[value] != most):
            which = f"{joined(*labels)}: {value} has seeds {seeds[value]}, not {most}"
            notes.append(f"{which}, and is not compared")
        rivals = [value for value in values if seeds[value] == most]
        best[labels] = max(rivals, key=lambda value: _merit(values[value], score))
    return best, notes


def _merit(runs: Sequence[Run], score: Score) -> tuple[float, float]:
    """The share of runs that reached the target, and the mean, larger if better."""
    results = [score.of(run) for run in runs]
    mean = fmean(result.value for result in results) * (1 if score.higher_is_better else -1)
    return (-1, 0) if isnan(mean) else (fmean(result.reached for result in results), mean)
