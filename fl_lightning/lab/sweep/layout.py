"""The finished runs of a table in the paper's layout."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from math import isnan
from statistics import fmean

from pandas import Categorical

from fl_lightning.lab.report.grid import grid
from fl_lightning.lab.report.score import Score
from fl_lightning.lab.report.score import score as make_score
from fl_lightning.lab.report.table import Table
from fl_lightning.lab.sweep.plan import Cell, Job
from fl_lightning.lab.sweep.table_file import TableFile, joined
from fl_lightning.runs.run import Run

Placed = tuple[Cell, Run]


def layout(table: TableFile, jobs: Sequence[Job]) -> list[Table]:
    """Scores of finished runs beside published ones: a table for each score with published ones."""
    placed, notes = list[Placed](), list[str]()
    finished = [job for job in jobs if job.state == "finished"]
    for job in finished:
        try:
            run = Run.read(job.folder)
            placed += [(cell, run) for cell in job.cells]
        except ValueError as error:
            notes.append(f"{error}; left out")
    caption = ""
    if tuned := ", ".join(next(iter(table.tune.values()))):
        placed, more = _best_tuned(placed, make_score(table.scores[0]))
        notes, caption = [*notes, *more], f"; best of {tuned} by {table.scores[0]}"
    shortened = {f"{n} of {j.rounds}" for j in jobs if (n := j.config["rounds"]) != j.rounds}
    if shortened:
        caption += f"; {', '.join(sorted(shortened))} rounds: not compared with published numbers"
        table = replace(table, published={})
    if missing := len(jobs) - len(finished):
        caption += f"; {missing} of {len(jobs)} runs are missing"
    if len(table.published) < 2:
        tables = [_grid(table, placed, table.scores, table.column_labels, caption)]
    else:
        known = {s: set().union(*rows.values()) for s, rows in table.published.items()}
        parts = {
            s: [c for c in table.column_labels if c in known.get(s, table.column_labels)]
            for s in table.scores
        }
        tables = [_grid(table, placed, (s,), shown, caption) for s, shown in parts.items() if shown]
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
    means = {
        label: [c for c in columns if any(fnmatchcase(c, pattern) for pattern in patterns)]
        for label, patterns in table.means.items()
    }
    shown = grid(
        [run for _, run in placed],
        rows,
        Categorical([cell.column for cell, _ in placed], [*columns]),
        scores,
        published=published,
        means={label: of_mean for label, of_mean in means.items() if of_mean},
        spread=table.spread,
        over=table.over if table.over in rows else "",
    )
    return replace(shown, caption=f"{table.name}: {shown.caption}{caption}")


def _best_tuned(placed: Sequence[Placed], score: Score) -> tuple[list[Placed], list[str]]:
    """The runs of each cell with the tuned values whose score is best, and remarks.

    Only values with the most seeds of the cell, and the same, compete. Those with which more runs
    reached the score's target come first; then the mean decides.
    """
    cells = defaultdict[tuple[str, str], dict[str, list[Placed]]](dict)
    for cell, run in placed:
        cells[cell.row, cell.column].setdefault(cell.tuned, []).append((cell, run))
    kept, notes = list[Placed](), list[str]()
    for labels, values in cells.items():
        seeds = {value: sorted(r.config["seed"] for _, r in of) for value, of in values.items()}
        most = max(seeds.values(), key=len)
        for value in (value for value in values if seeds[value] != most):
            which = f"{joined(*labels)}: {value} has seeds {seeds[value]}, not {most}"
            notes.append(f"{which}, and is not compared")
        rivals = [of for value, of in values.items() if seeds[value] == most]
        kept += max(rivals, key=lambda of: _merit([run for _, run in of], score))
    return kept, notes


def _merit(runs: Sequence[Run], score: Score) -> tuple[float, float]:
    """The share of runs that reached the target, and the mean, larger if better."""
    results = [score.of(run) for run in runs]
    mean = fmean(result.value for result in results) * (1 if score.higher_is_better else -1)
    return (-1, 0) if isnan(mean) else (fmean(result.reached for result in results), mean)
