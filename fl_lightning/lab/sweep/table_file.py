"""The YAML file of a table: rows, columns, sweeps, seeds, scores and published numbers."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations as pairs
from itertools import product
from typing import Any

from fl_lightning.algorithms.registry import ALGORITHMS
from fl_lightning.cli.arguments import flag_of
from fl_lightning.cli.config_files import TABLE_KEYS, read_chain
from fl_lightning.errors import UserError, nearest
from fl_lightning.lab.report.score import score as make_score
from fl_lightning.lab.sweep.axes import (
    Axis,
    axis_of,
    check_known,
    combinations,
    fitting,
    joined,
    listed,
    mapping,
    refuse_fixed,
    set_by,
)
from fl_lightning.runs.config import flat

SPREADS = "seeds", "rounds", "clients"


@dataclass(frozen=True)
class TableFile:
    """A table as its file describes it. A run is a row, a column, a sweep, a tuned value, a seed.

    Where several parts set an option, the last of these counts: the file and its presets, the
    file's options of the method, the row, the column, the column's options of the method, the
    sweep, the tuned value.

    Attributes:
        name: The file, or the preset such as `fedssg/table4`.
        rows: Options by row; by default a row for each of the file's `methods`.
        columns: Options by column. `config` names presets to read after the file, `methods` has
            options by method.
        sweep: Combinations of values; each makes a further column of every column.
        tune: Combinations of values by row, under "" for all other rows; a cell shows the best one
            by the first score.
        tune_seeds: The seeds with which values are tried, before the best one gets the seeds of the
            table; empty for these.
        chosen: The best combination of values of each row and column, which alone is run; None for
            all.
        recipe: The recipe that makes the runs, by name or file.
        seeds: The seeds of each cell.
        scores: Names of scores, such as `last:50` or `rounds_to:97`.
        spread: What deviations are over: `seeds`, `rounds` or `clients`.
        over: The row that gains and speed-ups are relative to.
        means: Further columns by label, each the mean of the columns that fit its patterns.
        algorithm: The method of rows that name none; empty for the recipe's.
        published: The paper's numbers by score, row and column.
    """

    name: str
    rows: Axis
    columns: Axis = field(default_factory=lambda: {"": {}})
    sweep: Axis = field(default_factory=lambda: {"": {}})
    tune: Mapping[str, Axis] = field(default_factory=lambda: {"": {"": {}}})
    tune_seeds: tuple[int, ...] = ()
    chosen: Mapping[tuple[str, str], str] | None = None
    recipe: str = "papers"
    seeds: tuple[int, ...] = (0,)
    scores: tuple[str, ...] = ("last",)
    spread: str = "seeds"
    over: str = ""
    means: Mapping[str, Sequence[str]] = field(default_factory=dict)
    algorithm: str = ""
    published: Mapping[str, Mapping[str, Mapping[str, float]]] = field(default_factory=dict)

    @staticmethod
    def read(name: str) -> "TableFile":
        """Read a file, and the rows and columns of the files that its `config` names.

        Raises:
            UserError: If a key does not hold what it should.
        """
        contents = [*read_chain(name)]
        try:
            return _read(name, contents)
        except UserError as error:
            raise UserError(f"{name}: {error}") from None

    def changed(
        self, rows: Sequence[str] = (), columns: Sequence[str] = (), **changes: Any
    ) -> "TableFile":
        """The table with other attributes, and with some of its rows and columns.

        A mean stays if all of its columns do.

        Args:
            rows: Labels or patterns, such as `fed*`; none keeps all. An algorithm that has no row
                gets one.
            columns: Labels or patterns; none keeps all.
            changes: Attributes to replace.

        Raises:
            UserError: If a pattern fits nothing, or the changed table contradicts itself.
        """
        further = {name: {"algorithm": name} for name in (*ALGORITHMS, *rows) if _method(name)}
        if not (kept := _matching(rows, self.rows, further, "row")):
            raise UserError(
                f"{self.name} has no rows: name algorithms under methods, or by --methods"
            )
        table = replace(self, rows={**self.rows, **kept}, **changes)
        table.check()
        shown = replace(table, rows=kept, columns=_matching(columns, self.columns, {}, "column"))
        lost = {*table.column_labels} - {*shown.column_labels}
        means = {label: p for label, p in self.means.items() if not fitting(lost, p)}
        return replace(shown, means=means)

    @property
    def column_labels(self) -> list[str]:
        """The labels of all columns: one for each column and combination of the sweep."""
        return [joined(column, swept) for column, swept in product(self.columns, self.sweep)]

    def tried(self, row: str, column: str) -> Axis:
        """The combinations of values of a cell that are run."""
        every = self.tune.get(row, self.tune[""])
        if self.chosen is None:
            return every
        return {tuned: of for tuned, of in every.items() if tuned == self.chosen.get((row, column))}

    def check(self) -> None:
        """Raise a UserError for what is empty or unknown, and for options that two parts set."""
        for key, values in (("seeds", self.seeds), ("score", self.scores)):
            if not values:
                raise UserError(f"{key} is empty: name one at least")
        if self.spread not in SPREADS:
            raise UserError(f"spread is seeds, rounds or clients, not {self.spread!r}")
        if both := self.means.keys() & {*self.column_labels}:
            raise UserError(f"means.{min(both)} is a column, too: name it otherwise")
        if self.over:
            check_known(self.over, self.rows, "over: the table has no row")
        for score in self.scores:  # before the runs, which may take long
            make_score(score)
        axes = {"rows": self.rows, "columns": self.columns, "sweep": self.sweep}
        named = {key: set_by(axis).keys() for key, axis in axes.items()}
        for here, there in pairs(named, 2):
            if both := named[here] & named[there] - {"config", "methods"}:
                raise UserError(
                    f"{here} and {there} both set {min(both)}: one label would be wrong"
                )
        for row, tuned in self.tune.items():
            of_rows = flat(self.rows[row]).keys() if row else named["rows"]
            if both := (of_rows | named["columns"] | named["sweep"]) & set_by(tuned).keys():
                where = f"rows.{row}.tune" if row else "tune"
                raise UserError(f"{where} sets {min(both)}, which rows, columns or sweep set, too")
        if self.tune_seeds and not set_by(*self.tune.values()):
            raise UserError("tune_seeds has no effect: name values under tune")

    def refuse_labeled(self, options: Collection[str]) -> None:
        """Raise a UserError for an option of every run that sweep or tune set, too."""
        for key, axes in ("sweep", [self.sweep]), ("tune", self.tune.values()):
            if both := set_by(*axes).keys() & {*options}:
                flag = flag_of(min(both))
                raise UserError(f"{flag} and {key} both set {min(both)}: omit {flag}")


def _read(name: str, contents: Sequence[Mapping[Any, Any]]) -> TableFile:
    methods, found, algorithm = dict[str, Any](), dict[str, Any](), ""
    for content in contents:
        refuse_fixed(content, "the file")
        methods |= axis_of(content.get("methods"), "methods")
        algorithm = str(flat({"algorithm": content.get("algorithm", algorithm)})["algorithm"])
        for own in ("score", "spread", "over", "means", "published"):
            found.pop(own, None)  # numbers of another table
        found |= {key: content[key] for key in TABLE_KEYS if content.get(key) is not None}
    rows = axis_of(found.get("rows"), "rows") or {method: {} for method in methods}
    columns = axis_of(found.get("columns"), "columns") or {"": {}}
    tune = {
        row: combinations(mapping(options.pop("tune"), f"rows.{row}.tune"))
        for row, options in rows.items()
        if "tune" in options
    }
    for row, options in rows.items():
        if method := _method(row):
            rows[row] = {"algorithm": method, **options}
        elif not options and not algorithm:
            near = nearest(row, ALGORITHMS)
            raise UserError(f"row {row!r} has no options and is no algorithm{near}")
    for column, options in columns.items():
        options["methods"] = axis_of(options.get("methods"), f"columns.{column}.methods")
        for method in (method for method in options["methods"] if not _method(method)):
            check_known(method, ALGORITHMS, f"columns.{column} has no method")
    means = mapping(found.get("means"), "means")
    table = TableFile(
        name,
        rows,
        columns,
        sweep=combinations(mapping(found.get("sweep"), "sweep")),
        tune={"": combinations(mapping(found.get("tune"), "tune")), **tune},
        tune_seeds=tuple(dict.fromkeys(listed(found.get("tune_seeds", ())))),
        recipe=str(found.get("recipe", TableFile.recipe)),
        seeds=tuple(dict.fromkeys(listed(found.get("seeds", 0)))),
        scores=tuple(map(str, listed(found.get("score", "last")))),
        spread=found.get("spread", "seeds"),
        over=str(found.get("over", "")),
        means={label: [*map(str, listed(patterns))] for label, patterns in means.items()},
        algorithm=algorithm,
    )
    table.check()
    for mean, pattern in ((m, p) for m, patterns in table.means.items() for p in patterns):
        if not fitting(table.column_labels, [pattern]):
            near = nearest(pattern, table.column_labels)
            raise UserError(f"means.{mean} has no column {pattern!r}{near}")
    published = mapping(found.get("published"), "published")
    if not published.keys() <= {*table.scores}:
        published = {table.scores[0]: published}
    return replace(table, published={s: _numbers(table, s, of) for s, of in published.items()})


def _numbers(table: TableFile, score: str, by_row: Any) -> dict[str, dict[str, float]]:
    """Published numbers of a score by row and column; a list has the order of the columns."""
    columns, numbers = table.column_labels, dict[str, dict[str, float]]()
    for row, found in mapping(by_row, f"published.{score}").items():
        where = f"published.{row}"
        check_known(row, table.rows, f"{where}: the table has no row")
        if not isinstance(found, Mapping):
            found = listed(found)
            if len(found) != len(columns):
                raise UserError(
                    f"{where} has {len(found)} numbers for {len(columns)} columns: "
                    "write none where there is no number"
                )
            found = dict(zip(columns, found, strict=True))
        numbers[row] = {str(c): n for c, n in found.items() if n not in (None, "none")}
        for column, number in numbers[row].items():
            check_known(column, columns, f"{where}: the table has no column")
            if not isinstance(number, int | float):
                raise UserError(f"{where} has {number!r}, which is no number")
            numbers[row][column] = float(number)
    return numbers


def _matching(patterns: Sequence[str], known: Axis, further: Axis, kind: str) -> Axis:
    found = dict[str, Mapping[str, Any]]()
    for pattern in patterns:
        matches = {name: known[name] for name in fitting(known, [pattern])}
        if not matches and pattern not in further:
            raise UserError(f"the table has no {kind} {pattern!r}{nearest(pattern, known)}")
        found |= matches or {pattern: further[pattern]}
    return found or known


def _method(label: str) -> str:
    """The algorithm that a label names, also as papers spell it; empty for none."""
    known = label.lower().replace("-", "_")
    return known if known in ALGORITHMS else label if ":" in label else ""
