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
from fl_lightning.lab.sweep.table_file import TableFile
from fl_lightning.runs.run import Run

Placed = tuple[Cell, Run]


def layout(table: TableFile, jobs: Sequence[Job]) -> list[Table]:
    """Scores of finished runs next to published ones: one table for each published score."""
    placed, notes = list[Placed](), list[str]()
    finished = [job for job in jobs if job.state == "finished"]
    for job in finished:
        try:
            run = Run.read(job.folder)
            placed += [(cell, run) for cell in job.cells]
        except ValueError as error:
            notes.append(f"{error}; left out")
    if table.tune:
        placed, more = _best_tuned(placed, make_score(table.scores[0]))
        notes += more
    labels = [label for label, *_ in table.swept_columns()]
    parts = [(table.scores, labels)]
    if len(table.published) > 1:
        known = {
            s: {c for row in rows.values() for c in row} for s, rows in table.published.items()
        }
        parts = [((s,), [c for c in labels if c in known.get(s, labels)]) for s in table.scores]
    caption = f"; best of {', '.join(table.tune)} by {table.scores[0]}" if table.tune else ""
    if missing := len(jobs) - len(finished):
        caption += f"; {missing} of {len(jobs)} runs are missing"
    tables = [_grid(table, placed, scores, shown, caption) for scores, shown in parts if shown]
    return [replace(tables[0], notes=[*notes, *tables[0].notes]), *tables[1:]]


def _grid(
    table: TableFile,
    placed: Sequence[Placed],
    scores: Sequence[str],
    columns: Sequence[str],
    caption: str,
) -> Table:
    placed = [(cell, run) for cell, run in placed if cell[1] in columns]
    known, rows = table.published.get(scores[0], {}), [row for (row, _, _), _ in placed]
    means = {
        name: [c for c in columns if any(fnmatchcase(c, pattern) for pattern in patterns)]
        for name, patterns in table.means.items()
    }
    shown = grid(
        [run for _, run in placed],
        rows,
        Categorical([column for (_, column, _), _ in placed], [*columns]),
        scores,
        published={
            row: {c: number for c, number in known.get(row, {}).items() if c in columns}
            for row in table.rows
        },
        means={name: of_mean for name, of_mean in means.items() if of_mean},
        spread=table.spread,
        over=table.over if table.over in rows else "",
    )
    return replace(shown, caption=f"{table.name}: {shown.caption}{caption}")


def _best_tuned(placed: Sequence[Placed], score: Score) -> tuple[list[Placed], list[str]]:
    """The runs of each cell with the tuned values whose score is best, and remarks.

    Only values with the same seeds, the most of the cell, compete. Those with which more runs
    reached the score's target come first; then the mean decides.
    """
    cells = defaultdict[tuple[str, str], dict[str, list[Run]]](dict)
    for (row, column, tuned), run in placed:
        cells[row, column].setdefault(tuned, []).append(run)
    kept, notes = list[Placed](), list[str]()
    for (row, column), values in cells.items():
        seeds = {value: sorted(r.config["seed"] for r in runs) for value, runs in values.items()}
        most = max(seeds.values(), key=len)
        for value in (value for value in values if seeds[value] != most):
            cell = ", ".join(filter(None, (row, column)))
            notes.append(
                f"{cell}: {value} has seeds {seeds[value]}, not {most}, and is not compared"
            )
        best = max((v for v in values if seeds[v] == most), key=lambda v: _merit(values[v], score))
        kept += [((row, column, best), run) for run in values[best]]
    return kept, notes


def _merit(runs: Sequence[Run], score: Score) -> tuple[float, float]:
    """The share of runs that reached the target, and the mean, larger if better."""
    results = [score.of(run) for run in runs]
    mean = fmean(result.value for result in results) * (1 if score.higher_is_better else -1)
    return (-1, 0) if isnan(mean) else (fmean(result.reached for result in results), mean)
