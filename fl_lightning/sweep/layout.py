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
    """Scores of finished runs next to published ones: one table for each published score."""
    finished = [(job, Run.read(job.folder)) for job in jobs if job.state == "finished"]
    placed = _best_tuned(table, [(cell, run) for job, run in finished for cell in job.cells])
    labels = [label for label, *_ in table.swept_columns()]
    if len(table.published) < 2:
        return [_grid(table, placed, table.scores, labels, _caption(table, jobs))]
    tables = []
    for score in table.scores:
        known = {column for row in table.published.get(score, {}).values() for column in row}
        shown = [label for label in labels if label in known or not known]
        if shown:
            tables.append(_grid(table, placed, [score], shown, _caption(table, jobs)))
    return tables


def _grid(
    table: TableFile,
    placed: Sequence[Placed],
    scores: Sequence[str],
    columns: Sequence[str],
    caption: str,
) -> Table:
    placed = [(cell, run) for cell, run in placed if cell[1] in columns]
    known = table.published.get(scores[0], {})
    published = {
        row: {column: number for column, number in known.get(row, {}).items() if column in columns}
        for row in table.rows
    }
    means = {
        column: name
        for name, patterns in table.means.items()
        for column in columns
        if any(fnmatchcase(column, pattern) for pattern in patterns)
    }
    rows = [row for (row, _, _), _ in placed]
    return grid(
        [run for _, run in placed],
        rows,
        Categorical([column for (_, column, _), _ in placed], [*columns]),
        scores,
        published=published,
        means=means,
        spread=table.spread,
        over=table.over if table.over in rows else None,
        caption=f"{table.name}: {', '.join(scores)}{caption}",
    )


def _best_tuned(table: TableFile, placed: Sequence[Placed]) -> list[Placed]:
    """The runs of each cell with the tuned values whose first score is best.

    Values with which more runs reached the score's target come first; then the mean decides.
    """
    if not table.tune or not placed:
        return list(placed)
    score = make_score(table.scores[0])
    rows = [f"{row}\n{tuned}" for (row, _, tuned), _ in placed]
    cells = numbers([r for _, r in placed], rows, [c for (_, c, _), _ in placed], [score])
    cells["reached"] /= cells["runs"]
    cells = cells.sort_values(["reached", "mean"], ascending=[False, not score.higher_is_better])
    cells[["row", "tuned"]] = cells["row"].str.split("\n", expand=True)
    best = cells.drop_duplicates(["row", "column"])[["row", "column", "tuned"]]
    kept = {*best.itertuples(index=False, name=None)}
    return [(cell, run) for cell, run in placed if cell in kept]


def _caption(table: TableFile, jobs: Sequence[Job]) -> str:
    missing = sum(job.state != "finished" for job in jobs)
    tuned = f"; best of {', '.join(table.tune)}" if table.tune else ""
    return tuned + (f"; {missing} of {len(jobs)} runs are missing" if missing else "")
