"""Scores of many runs in rows and columns, as the tables of papers show them."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from math import nan
from typing import Any

from pandas import Categorical, DataFrame, MultiIndex, Series, concat
from scipy.stats import kendalltau

from fl_lightning.report.score import Result, Score
from fl_lightning.report.score import score as make_score
from fl_lightning.report.table import Table
from fl_lightning.runs.run import Run

Published = Mapping[str, Mapping[str, float]]
"""Numbers by row, then by column, as `DataFrame.to_dict("index")` gives them."""

FORMATTED = ["mean", "deviation", "runs", "reached"]
FOLLOWING = {
    "published": ".{}f",
    "difference": "+.{}f",
    "gain": "+.{}f",
    "speed-up": ".2f",
    "cost": ".1f",
}
"""Columns that follow a score where there is something to show, with formats for its digits."""


def numbers(
    runs: Sequence[Run],
    rows: Sequence[str],
    columns: "Sequence[str] | Categorical[str] | None" = None,
    scores: Sequence[Score | str] = ("last",),
    *,
    groups: Mapping[str, str] | None = None,
    means: Mapping[str, str] | None = None,
    spread: str = "seeds",
    over: str | None = None,
    cost: bool = False,
    published: Published | None = None,
) -> DataFrame:
    """Score runs, cell by cell.

    Args:
        runs: The runs. Those of one cell differ in their seed.
        rows: The name of each run's row.
        columns: The name of each run's column.
        scores: Scores or their names, such as `last:50` or `rounds_to:97`.
        groups: A name for each row; rows are ranked within their group only.
        means: A name for each column; those of equal name get a further column, their mean.
        spread: The source of the deviation: `seeds` (sample deviation), or within each run `rounds`
            or `clients` (population deviation, mean over seeds) for scores that are means of those;
            other scores then have none.
        over: A row. Accuracies get their gain: their value less that of the row. Scores to a target
            get their speed-up: the value of the row by their own. A run that never reached the
            target counts with all that it spent.
        cost: Whether scores to a target get their cost: their value by the least of the column.
        published: Numbers to compare the first score with; their cells are there without a run too.

    Returns:
        One row per cell: `row, column, score, mean, deviation, runs, reached, rank, rivals`, and
        where they apply `published, difference, gain, speed-up, cost`. `reached` is the number of
        runs that reached the target, `rank` 1 for the best of the `rivals` cells of column and
        group.

    Raises:
        ValueError: If there is no score, or none of that name, no run has recorded it, or no row is
            `over`.
    """
    if not scores:
        raise ValueError("there are no scores: name one at least, such as last")
    columns = [""] * len(runs) if columns is None else columns
    known = published or {}
    if over and not any(_is_of(row, over) for row in rows):
        raise ValueError(f"no row is {over}: there are {', '.join(dict.fromkeys(rows))}")
    chosen = columns.categories if isinstance(columns, Categorical) else ()
    headings = _unique([*chosen, *(c for row in known.values() for c in row), *columns])
    names = _unique([*known, *rows])
    order = MultiIndex.from_product([names, headings], names=["row", "column"])
    parts = []
    for place, score in enumerate(map(make_score, scores)):
        cells = _cells(runs, rows, columns, score, spread)
        if len(runs) and cells["mean"].isna().all():
            raise ValueError(f"no run has recorded {score.name}")
        cells = cells.reindex(order)
        cells["published"] = [nan if place else known.get(r, {}).get(c, nan) for r, c in order]
        cells = cells[cells["runs"].notna() | cells["published"].notna()].fillna({"runs": 0})
        cells = cells.reset_index()
        cells.insert(2, "score", score.name)
        if means:
            cells = concat([cells, _means(cells, means)], ignore_index=True)
        parts.append(_compared(cells, score, groups or {}, over, cost))
    cells = concat(parts, ignore_index=True)
    headings += _unique((means or {}).values())
    cells["column"] = Categorical(cells["column"], [c for c in headings if c in {*cells["column"]}])
    return cells.drop(columns=[c for c in FOLLOWING if c in cells and cells[c].isna().all()])


def grid(
    runs: Sequence[Run],
    rows: Sequence[str],
    columns: "Sequence[str] | Categorical[str] | None" = None,
    scores: Sequence[Score | str] = ("last",),
    *,
    about: DataFrame | None = None,
    caption: str | None = None,
    **options: Any,
) -> Table:
    """Lay scores out with one row per method and one column per setting, best and second marked.

    Args:
        runs: The runs.
        rows: The name of each run's row.
        columns: The name of each run's column.
        scores: Scores or their names. Several give several columns per setting.
        about: The columns of text in front, by row; without it, the names of the rows.
        caption: The text below; a default one says what the numbers are.
        options: Those of `numbers`.

    Example::

        runs = report.load_runs(["runs"])
        report.grid(runs, [r.config["algorithm"] for r in runs], scores=["last:50", "best"])
    """
    made = [*map(make_score, scores)]
    cells = numbers(runs, rows, columns, made, **options)
    names = _unique(cells["row"])
    text = DataFrame({"method": names}, index=names) if about is None else about.reindex(names)
    marks = DataFrame("", index=text.index, columns=text.columns)
    footer: dict[str, list[str]] = {"method": ["mean |difference|", "Kendall's tau"]}
    for column, score in product(cells["column"].cat.categories, made):
        heading = ", ".join([column] * bool(column) + [score.name] * (len(made) > 1 or not column))
        part = cells[(cells["column"] == column) & (cells["score"] == score.name)]
        part = part.set_index("row").reindex(names)
        text[heading] = part.apply(lambda cell, s=score: s.format(*cell[FORMATTED]), axis=1)
        marks[heading] = part.apply(_mark, axis=1)
        for name, style in FOLLOWING.items():
            if name in part and part[name].notna().any():
                shown = f"{{:{style.format(score.digits)}}}" + "x" * (name in ("speed-up", "cost"))
                text[f"{heading}, {name}"] = part[name].map(shown.format, na_action="ignore")
        if "difference" in part and part["difference"].notna().any():
            agreed = agreement(part.reset_index()).loc[column, ["difference", "tau"]]
            footer[f"{heading}, difference"] = [*agreed.map("{:.2f}".format).replace("nan", "")]
    if len(footer) > 1:
        text = concat([text, DataFrame(footer)])
    text = text.fillna("")
    marks = marks.reindex(index=text.index, columns=text.columns, fill_value="")
    if caption is None:
        caption = _caption(made, cells, options.get("spread", "seeds"))
    return Table(text, marks, caption, cells)


def agreement(cells: DataFrame) -> DataFrame:
    """Compare scores with published ones.

    Args:
        cells: What `numbers` returned.

    Returns:
        One row per column: `cells`, the number of cells with both numbers, `difference`, the mean
        absolute one, and `tau`, Kendall's tau-b between the orders of the methods.
    """
    both = cells.dropna(subset="difference").round({"mean": 2})
    both["difference"] = both["difference"].abs()
    groups = both.groupby("column", sort=False)
    found = groups.agg(cells=("difference", "size"), difference=("difference", "mean"))
    taus = [
        kendalltau(part["mean"], part["published"]).statistic if len(part) > 1 else nan
        for _, part in groups
    ]
    return found.assign(tau=taus)


def _cells(
    runs: Sequence[Run], rows: Iterable[str], columns: Iterable[str], score: Score, spread: str
) -> DataFrame:
    """The mean and deviation of each cell."""
    frame = DataFrame([score.of(run) for run in runs], columns=Result._fields)
    frame = frame.assign(row=[*rows], column=[*columns])
    cells = frame.groupby(["row", "column"]).agg(
        mean=("value", _mean_of_all),
        deviation=("deviation", "mean") if spread == score.spread else ("value", "std"),
        runs=("value", "size"),
        reached=("reached", "sum"),
    )
    if spread not in ("seeds", score.spread):
        cells["deviation"] = nan
    return cells


def _means(cells: DataFrame, means: Mapping[str, str]) -> DataFrame:
    """The mean over columns of equal name; NaN unless a row has all of them."""
    cells = cells.assign(column=cells["column"].map(means)).dropna(subset="column")
    width = Series(means).value_counts()
    groups = cells.groupby(["row", "column"], sort=False)
    table = groups.agg({"runs": "sum", "reached": "sum", "score": "first"})
    whole = groups.size() == width.reindex(table.index, level="column")
    for number in ("mean", "published"):
        table[number] = groups[number].agg(_mean_of_all).where(whole)
    return table.reset_index()


def _compared(
    cells: DataFrame, score: Score, groups: Mapping[str, str], over: str | None, cost: bool
) -> DataFrame:
    """The cells with what follows from others of their column."""
    cells["difference"] = cells["mean"] - cells["published"]
    rivals = [cells["column"], cells["row"].map(lambda row: groups.get(row, ""))]
    complete = (cells["reached"] == cells["runs"]) & (score.higher_is_better is not None)
    ranked = cells["mean"].where(complete).round(score.digits).groupby(rivals)
    cells["rank"] = ranked.rank(method="dense", ascending=not score.higher_is_better)
    cells["rivals"] = ranked.transform("count")
    values = cells["mean"]
    if over:
        reference = values.where(cells["row"].map(lambda row: _is_of(row, over)))
        same = reference.groupby(rivals)
        reference = same.transform("max") if score.higher_is_better else same.transform("min")
        if score.to_target:
            cells["speed-up"] = reference / values
        elif score.higher_is_better:
            cells["gain"] = values - reference
    if cost and score.to_target:
        cells["cost"] = values / values.groupby(rivals).transform("min")
    return cells


def _mean_of_all(values: "Series[float]") -> float:
    return float(values.mean(skipna=False))


def _caption(scores: Sequence[Score], cells: DataFrame, spread: str) -> str:
    name = f"{scores[0].name}: " if len(scores) == 1 and any(cells["column"]) else ""
    of_clients = all(score.spread == "clients" for score in scores)
    subject = "test accuracy of " + ("each client's model" if of_clients else "the global model")
    deviation = f", mean ± standard deviation over {spread}" if cells["deviation"].any() else ""
    return f"{name}{subject}{deviation}"


def _mark(cell: "Series[Any]") -> str:
    if cell["rank"] == 1 and cell["rivals"] > 1:
        return "best"
    return "second" if cell["rank"] == 2 and cell["rivals"] > 2 else ""


def _is_of(row: str, method: str) -> bool:
    """True if a row is a method's, with some values of its options."""
    return row == method or row.startswith(f"{method}, ")


def _unique(names: Iterable[str]) -> list[str]:
    return [*dict.fromkeys(names)]
