"""Scores of runs in rows and columns, as the tables of papers show them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from math import nan
from typing import Any

from pandas import Categorical, DataFrame, MultiIndex, Series, concat, isna

from fl_lightning.errors import UserError
from fl_lightning.lab.report.score import Result, Score
from fl_lightning.lab.report.score import score as make_score
from fl_lightning.lab.report.table import Table
from fl_lightning.runs.run import Run

Published = Mapping[str, Mapping[str, float]]
"""Numbers by row, then by column, as `DataFrame.to_dict("index")` gives them."""

FORMATTED = ["mean", "deviation", "runs", "reached"]
FOLLOWING = {
    "published": "{:.{d}f}",
    "difference": "{:+.{d}f}",
    "gain": "{:+.{d}f}",
    "speed-up": "{:.2f}x",
}
"""Columns that follow a score where there is something to show, with formats for its digits."""

SHORT = {"published": "publ.", "difference": "diff."}
"""Names of columns below a common heading."""


def grid(
    runs: Sequence[Run],
    rows: Sequence[str],
    columns: "Sequence[str] | Categorical[str] | None" = None,
    scores: Sequence[Score | str] = ("last",),
    *,
    spread: str = "seeds",
    over: str = "",
    published: Published | None = None,
    means: Mapping[str, Sequence[str]] | None = None,
) -> Table:
    """Put scores into rows and columns; the best and the second of each column are marked.

    Args:
        runs: The runs. Those of one cell differ in their seed.
        rows: The name of each run's row.
        columns: The name of each run's column.
        scores: Scores or their names, such as `last:50`. Several give several columns each.
        spread: What deviations are over: `seeds` (sample deviation); or, within each run, `rounds`
            or `clients` (population deviation, mean over seeds), for scores that are means of
            those.
        over: The row that the others are compared with. Accuracies get a gain, scores to a target a
            speed-up: a dash unless all runs of both rows reached the target.
        published: Published numbers of the first score. Cells without a run show them too.
        means: The columns whose mean is a further column, by the name of that one.

    Raises:
        UserError: If there is no score of that name, no run has recorded it, or `over` is no row.

    Example::

        runs = report.load_runs(["runs"])
        report.grid(runs, [r.config["algorithm"] for r in runs], scores=["last:50", "best"])
    """
    named = (make_score(score, runs) for score in scores)
    made = [*{score.name: score for score in named}.values()]
    known = published or {}
    columns = [""] * len(runs) if columns is None else columns
    first = map(str, columns.categories) if isinstance(columns, Categorical) else ()
    rows, columns = [*map(str, rows)], [*map(str, columns)]  # or numbers, as of an option
    headings = [*dict.fromkeys([*first, *(c for row in known.values() for c in row), *columns])]
    names = [*dict.fromkeys([*known, *rows])]
    if over and over not in names:
        raise UserError(f"no row is {over}: there are {'; '.join(names)}")
    every = MultiIndex.from_product([names, headings], names=["row", "column"])
    parts, notes = [], []
    for place, score in enumerate(made):
        results = DataFrame([score.of(run) for run in runs], columns=Result._fields)
        if lacking := [str(runs[k].path) for k in results.index[results["value"].isna()]]:
            if len(lacking) == len(runs):
                raise UserError(
                    f"no run has recorded {score.name} as a number: choose another score, or add "
                    "the callback that records it"
                )
            notes.append(
                f"{score.name} is blank where it was not recorded, or NaN: {', '.join(lacking)}"
            )
        if short := int(results["short"].sum()):
            which = f"{short} of the {len(runs)} runs" if len(runs) > 1 else "the run"
            which += " has" if short == 1 else " have"
            notes.append(f"{score.name}: {which} fewer evaluations, and the mean is over all")
        made[place] = score = score.with_digits(results["value"])
        cells = _cells(results.assign(row=rows, column=columns), score, spread)
        cells = cells.reindex(every).assign(published=nan)
        if not place:
            cells["published"] = [known.get(row, {}).get(column, nan) for row, column in every]
        cells = cells.dropna(subset=["runs", "published"], how="all").fillna({"runs": 0})
        cells = concat([cells, _means(cells, means or {})])
        cells = _compared(cells, score, over).reset_index()
        cells.insert(2, "score", score.name)
        parts.append(cells)
    numbers = concat(parts, ignore_index=True)
    order = [c for c in (*headings, *(means or {})) if c in {*numbers["column"]}]
    numbers["column"] = Categorical(numbers["column"], order)
    empty = [name for name in FOLLOWING if name in numbers and numbers[name].isna().all()]
    numbers = numbers.drop(columns=empty)
    caption = _caption(made, numbers, spread)
    return replace(
        _text(names, numbers, made, spread), caption=caption, numbers=numbers, notes=notes
    )


def _cells(results: DataFrame, score: Score, spread: str) -> DataFrame:
    """The mean and deviation of each cell; NaN if a run of it did not record the score."""
    cells = results.groupby(["row", "column"]).agg(
        mean=("value", _mean_of_all),
        deviation=("deviation", "mean") if spread == score.spread else ("value", "std"),
        runs=("value", "size"),
        reached=("reached", "sum"),
    )
    return cells if spread in ("seeds", score.spread) else cells.assign(deviation=nan)


def _means(cells: DataFrame, means: Mapping[str, Sequence[str]]) -> DataFrame:
    """The mean of several columns; NaN unless a row has all of them."""
    found, cells = [], cells.assign(missed=cells["runs"] - cells["reached"])
    for name, columns in means.items():
        part = cells[cells.index.isin(columns, level="column")].groupby("row", sort=False)
        whole = part.agg({"runs": "min", "missed": "max"})
        whole["reached"] = (whole["runs"] - whole.pop("missed")).clip(lower=0)
        for number in ("mean", "published"):
            whole[number] = part[number].agg(_mean_of_all).where(part.size() == len(columns))
        found.append(whole.assign(column=name).set_index("column", append=True))
    return concat(found) if found else cells[:0].drop(columns="missed")


def _compared(cells: DataFrame, score: Score, over: str) -> DataFrame:
    """The cells with their difference, mark, gain and speed-up.

    A cell in which a run did not reach the target has no known value. One with fewer runs than
    another of its column has no mark: its failed runs may have been the worse ones.
    """
    known = cells["mean"].where(cells["reached"] == cells["runs"])
    cells = cells.assign(difference=known - cells["published"], mark="")
    if score.higher_is_better is not None:
        most = cells["runs"].groupby(level="column").transform("max")
        rivals = known.where(cells["runs"] == most).round(score.digits).groupby(level="column")
        rank = rivals.rank(method="dense", ascending=not score.higher_is_better)
        for place, mark in enumerate(("best", "second"), 1):
            cells.loc[(rank == place) & (rivals.transform("count") > place), "mark"] = mark
    if over:
        of_row = known[known.index.isin([over], level="row")].droplevel("row")
        reference = of_row.reindex(known.index, level="column")
        if score.to_target:
            cells["speed-up"] = reference / known
        elif score.higher_is_better:
            cells["gain"] = known - reference
    return cells


def _text(rows: Sequence[str], numbers: DataFrame, scores: Sequence[Score], spread: str) -> Table:
    """The table as text, with the marks of its cells."""
    text, marks = {"method": [*rows]}, dict[str, Any]()
    footer, heads = {"method": ["mean absolute difference", "Kendall's tau"]}, {}
    most = numbers["runs"].max() if spread == "seeds" else 0
    for column, score in product(numbers["column"].cat.categories, scores):
        named = [column] * bool(column) + [score.name] * (len(scores) > 1 or not column)
        heading = ", ".join(named)
        part = numbers[(numbers["column"] == column) & (numbers["score"] == score.name)]
        part = part.set_index("row").reindex(rows)
        text[heading] = [
            score.format(*cell) + (f" ({cell.runs:.0f})" if 0 < cell.runs < most else "")
            for cell in part[FORMATTED].itertuples(index=False)
        ]
        marks[heading] = part["mark"].fillna("").tolist()
        following = [name for name in FOLLOWING if name in part and part[name].notna().any()]
        for name in following:
            values = zip(part[name], part["mean"], strict=True)
            text[f"{heading}, {name}"] = [_shown(name, *cell, score.digits) for cell in values]
            heads[f"{heading}, {name}"] = heading, SHORT.get(name, name)
        if following:
            heads[heading] = heading, "ours" if "published" in following else ""
        if "difference" in following:
            both = part.round({"mean": score.digits}).dropna(subset="difference")
            tau = both["mean"].corr(both["published"], "kendall", min_periods=2)
            size = f"{both['difference'].abs().mean():.{max(2, score.digits)}f}"
            footer[f"{heading}, difference"] = [size, "" if isna(tau) else f"{tau:.2f}"]
    table = DataFrame(text, [*rows], dtype=object)
    if len(footer) > 1:
        table = concat([table, DataFrame(footer, dtype=object)]).fillna("")
    return Table(table, DataFrame(marks, [*rows], dtype=object), heads=heads)


def _shown(name: str, value: float, mean: float, digits: int) -> str:
    if isna(value):
        return "-" if name == "speed-up" and not isna(mean) else ""
    return FOLLOWING[name].format(value, d=digits)


def _caption(scores: Sequence[Score], numbers: DataFrame, spread: str) -> str:
    """A sentence that says what the numbers are."""
    words = [f"{scores[0].name}:"] if len(scores) == 1 and any(numbers["column"]) else []
    accuracies = [score for score in scores if score.name.endswith(", %")]
    whose = {"each client's" if s.spread == "clients" else "the global" for s in accuracies}
    if whose:
        words.append(f"test accuracy of {' or '.join(sorted(whose, reverse=True))} model,")
    if deviates := numbers["deviation"].notna().any():
        words.append("mean ± standard deviation over")
    counts = sorted({int(runs) for runs in numbers["runs"] if runs}) or [0]
    seeds = f"{counts[-1]} seed{'s' * (counts[-1] != 1)}"
    words.append(spread if deviates and spread != "seeds" else seeds)
    fewer = spread == "seeds" and len(counts) > 1
    return " ".join(words) + "; (n): over n seeds" * fewer


def _mean_of_all(values: "Series[float]") -> float:
    return float(values.mean(skipna=False))
