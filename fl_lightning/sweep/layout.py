"""The finished runs of a table in the paper's layout."""

from collections.abc import Sequence
from fnmatch import fnmatchcase

from pandas import Categorical

from fl_lightning.report.grid import grid, numbers
from fl_lightning.report.score import score as make_score
from fl_lightning.report.table import Table
from fl_lightning.runs.run import Run
from fl_lightning.sweep.plan import Cell, Job
from fl_lightning.sweep.table_file import TableFile

Placed = tuple[Cell, Run]


def layout(table: TableFile, jobs: Sequence[Job]) -> list[Table]:
    """Scores of the finished runs next to the published ones: one table for each published score.

    Raises:
        ValueError: If there is no such score.
    """
    finished = [(job, Run.read(job.folder)) for job in jobs if job.state == "finished"]
    placed = _best_tuned(table, [(cell, run) for job, run in finished for cell in job.cells])
    rows = [row for (row, _, _), _ in placed]
    labels = [label for label, _ in table.swept_columns()]
    columns = Categorical([column for (_, column, _), _ in placed], labels)
    means = {
        label: name
        for name, patterns in table.means.items()
        for label in labels
        if any(fnmatchcase(label, pattern) for pattern in patterns)
    }
    parts = [[score] for score in table.scores] if len(table.published) > 1 else [table.scores]
    return [
        grid(
            [run for _, run in placed],
            rows,
            columns,
            scores,
            published=_shown(table, scores[0], labels),
            means=means,
            spread=table.spread,
            over=table.over if table.over in rows else None,
            caption=_caption(table, scores, jobs, len(finished)),
        )
        for scores in parts
    ]


def _shown(table: TableFile, score: str, columns: Sequence[str]) -> dict[str, dict[str, float]]:
    """The published numbers of a score in the rows and columns of the table."""
    numbers = table.published.get(score, {})
    return {
        row: {column: n for column, n in numbers.get(row, {}).items() if column in columns}
        for row in table.rows
    }


def _best_tuned(table: TableFile, placed: Sequence[Placed]) -> list[Placed]:
    """Of the tuned values of a cell, the runs with the best mean of the first score."""
    if not table.tune:
        return list(placed)
    score, kept = make_score(table.scores[0]), list[Placed]()
    rows = [f"{row}\n{tuned}" for (row, _, tuned), _ in placed]
    cells = numbers([r for _, r in placed], rows, [c for (_, c, _), _ in placed], [score])
    means = cells.set_index(["row", "column"])["mean"]
    for row, column in dict.fromkeys(cell[:2] for cell, _ in placed):
        own = {
            cell[2]: means[f"{row}\n{cell[2]}", column]
            for cell, _ in placed
            if cell[:2] == (row, column)
        }
        best = (max if score.higher_is_better else min)(own, key=own.__getitem__)
        kept += [(cell, run) for cell, run in placed if cell == (row, column, best)]
    return kept


def _caption(table: TableFile, scores: Sequence[str], jobs: Sequence[Job], finished: int) -> str:
    missing = len(jobs) - finished
    notes = [f"{table.name}: {', '.join(scores)}"]
    notes += [f"best of {', '.join(table.tune)}"] if table.tune else []
    notes += [f"{missing} of {len(jobs)} runs are missing"] if missing else []
    return "; ".join(notes)
