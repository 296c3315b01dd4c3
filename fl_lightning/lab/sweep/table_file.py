"""The YAML file of a table: rows, columns, sweeps, seeds, score and published numbers."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from itertools import combinations as pairs
from itertools import product
from typing import Any

from fl_lightning.algorithms.registry import ALGORITHMS
from fl_lightning.cli.config_files import TABLE_KEYS, read_chain
from fl_lightning.errors import UserError, nearest
from fl_lightning.lab.report.comparison import format_value
from fl_lightning.lab.report.score import score as make_score
from fl_lightning.runs.config_yaml import flat

Options = Mapping[str, Any]
"""Options by name as in a preset."""

FIXED = {
    "seed": "seeds",
    "run_dir": "--runs",
    "resume": "nothing: begun runs are resumed",
    "devices": "--jobs: each run has one rank",
}
"""Options that a table sets for each run, and what to give instead."""


@dataclass(frozen=True)
class TableFile:
    """A table as its file describes it.

    An option that several parts of the file set has the value of the last of these: the file and
    its presets, its methods, the row, the column, the column's methods, sweep and tune.

    Attributes:
        name: The file, or the preset such as `fedssg/table4`.
        rows: Options by the label of a row; each method of `methods` if the file names none.
        recipe: The recipe that runs make, by name or file.
        columns: Options by the label of a column. `config` names presets that are read after the
            file, and `methods` has options of single methods in this column.
        sweep: Values by option; every combination is a column.
        tune: Values by option; a cell shows the best combination, chosen by the first score.
        seeds: Seeds of each cell.
        scores: Names of scores, such as `last:50` or `rounds_to:97`; `score` in the file.
        spread: The source of deviations: `seeds`, `rounds` or `clients`.
        over: The row that gains and speed-ups are relative to.
        means: Patterns of column labels by the label of a further column, their mean.
        algorithm: The method of rows that name none; empty for the recipe's.
        published: The paper's numbers by score, row and column. In the file they are those of the
            first score, unless scores are named; a list has the order of the columns.
    """

    name: str
    rows: Mapping[str, Options]
    recipe: str = "papers"
    columns: Mapping[str, Options] = field(default_factory=lambda: {"": {}})
    sweep: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    tune: Mapping[str, Sequence[Any]] = field(default_factory=dict)
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
            ValueError: If a key does not hold what it should.
        """
        methods, found, algorithm = dict[str, Any](), dict[str, Any](), ""
        for content in read_chain(name):
            _refuse_fixed(content, name)
            methods |= _options_by(content.get("methods"), "methods", name)
            chosen = content.get("algorithm", {})
            chosen = chosen if isinstance(chosen, Mapping) else {"name": chosen}
            algorithm = str(chosen.get("name", algorithm))
            for own in ("score", "spread", "over", "means", "published"):
                found.pop(own, None)  # numbers of another table
            found |= {key: content[key] for key in TABLE_KEYS if content.get(key) is not None}
        rows = _options_by(found.get("rows"), "rows", name) or {method: {} for method in methods}
        columns = _options_by(found.get("columns"), "columns", name) or {"": {}}
        for row, options in rows.items():
            if not (options or _method(row) or algorithm):
                near = nearest(row, ALGORITHMS)
                raise UserError(f"row {row!r} in {name} has no options and is no algorithm{near}")
            rows[row] = {"algorithm": _method(row), **options} if _method(row) else options
        for column, options in columns.items():
            where = f"columns.{column}.methods"
            of_methods = _options_by(options.get("methods"), where, name)
            options["methods"] = of_methods
            if unknown := [method for method in of_methods if not _method(method)]:
                near = nearest(unknown[0], ALGORITHMS)
                raise UserError(f"columns.{column} in {name} has no method {unknown[0]!r}{near}")
        means = _mapping(found.get("means"), "means", name)
        file = TableFile(
            name,
            rows,
            columns=columns,
            sweep={o: _list(v) for o, v in _mapping(found.get("sweep"), "sweep", name).items()},
            tune={o: _list(v) for o, v in _mapping(found.get("tune"), "tune", name).items()},
            recipe=str(found.get("recipe", TableFile.recipe)),
            seeds=tuple(dict.fromkeys(_list(found.get("seeds", 0)))),
            scores=tuple(map(str, _list(found.get("score", "last")))),
            spread=found.get("spread", "seeds"),
            over=str(found.get("over", "")),
            means={label: [*map(str, _list(patterns))] for label, patterns in means.items()},
            algorithm=algorithm,
        )
        file.check()
        file.check_over(file.over)
        labels = [label for label, *_ in file.swept_columns()]
        for mean, patterns in file.means.items():
            for pattern in patterns:
                if not any(fnmatchcase(label, pattern) for label in labels):
                    near = nearest(pattern, labels)
                    raise UserError(f"means.{mean} in {name} has no column {pattern!r}{near}")
        published = _mapping(found.get("published"), "published", name)
        if not published.keys() <= {*file.scores}:
            published = {file.scores[0]: published}
        return replace(file, published={s: file._numbers(s, published[s]) for s in published})

    def check(self) -> None:
        """Raise a ValueError for a part that is empty, unknown, or contradicts another one."""
        for key, empty in (("seeds", not self.seeds), ("score", not self.scores)):
            if empty:
                raise UserError(f"{key} in {self.name} is empty: name one at least")
        if self.spread not in ("seeds", "rounds", "clients"):
            raise UserError(
                f"spread in {self.name} is seeds, rounds or clients, not {self.spread!r}"
            )
        for score in self.scores:  # before the runs, which may take long
            make_score(score)
        for key, grid in (("sweep", self.sweep), ("tune", self.tune)):
            _refuse_fixed(grid, f"{key} in {self.name}")
            for option, values in grid.items():
                if not values:
                    raise UserError(f"{key}.{option} in {self.name} is empty: name one value")
        for (here, ours), (there, theirs) in pairs(self._labeled(), 2):
            if here.partition(".")[0] != there.partition(".")[0] and (both := ours & theirs):
                raise UserError(
                    f"{here} and {there} in {self.name} both set {min(both)}: one label would be "
                    "wrong"
                )

    def check_over(self, row: str) -> None:
        """Raise a ValueError unless the table has this row, or none is named."""
        if row and row not in self.rows:
            raise UserError(
                f"{self.name} has no row {row!r} to compare with{nearest(row, self.rows)}"
            )

    def _labeled(self) -> Iterator[tuple[str, set[str]]]:
        """The parts of the table whose labels say what they set, and the options that they set."""
        for key, parts in (("rows", self.rows), ("columns", self.columns)):
            for label, options in parts.items():
                yield f"{key}.{label}", flat(options).keys() - {"config", "methods"}
        yield "sweep", {*self.sweep}
        yield "tune", {*self.tune}

    def _numbers(self, score: str, by_row: Any) -> dict[str, dict[str, float]]:
        """Published numbers of a score by row and column; a list has the order of the columns."""
        columns, numbers = [column for column, *_ in self.swept_columns()], {}
        for row, found in _mapping(by_row, f"published.{score}", self.name).items():
            where = f"published.{row} in {self.name}"
            if row not in self.rows:
                raise UserError(f"{where} has no row{nearest(row, self.rows)}")
            if not isinstance(found, Mapping):
                found = _list(found)
                if len(found) != len(columns):
                    raise UserError(
                        f"{where} has {len(found)} numbers for {len(columns)} columns: "
                        "write none where there is no number"
                    )
                found = dict(zip(columns, found, strict=True))
            found = {str(c): n for c, n in found.items() if n not in (None, "none")}
            for column, number in found.items():
                if column not in columns:
                    raise UserError(f"{where} has no column {column!r}{nearest(column, columns)}")
                if not isinstance(number, int | float):
                    raise UserError(f"{where} has {number!r}, which is no number")
            numbers[row] = {column: float(number) for column, number in found.items()}
        return numbers

    def select(self, rows: Sequence[str] = (), columns: Sequence[str] = ()) -> "TableFile":
        """Keep rows and columns by labels or patterns, such as `fed*`; none keeps all.

        An algorithm without a row gets one. Raises a ValueError if a pattern fits none.
        """
        own = {name: {"algorithm": name} for name in (*ALGORITHMS, *rows) if _method(name)}
        return replace(
            self,
            rows=_matching(rows, self.rows, own, "row"),
            columns=_matching(columns, self.columns, {}, "column"),
        )

    def swept_columns(self) -> list[tuple[str, Options, Options]]:
        """Labels of the columns, their options, and one combination of the sweep's values."""
        return [
            (", ".join(filter(None, [column, label])), options, values)
            for column, options in self.columns.items()
            for label, values in combinations(self.sweep)
        ]


def combinations(grid: Mapping[str, Sequence[Any]]) -> list[tuple[str, Options]]:
    """Every choice of one value for each option, with a label such as `rho 0.1`."""
    choices = product(*([(option, value) for value in values] for option, values in grid.items()))
    return [
        (", ".join(f"{o.rpartition('.')[2]} {format_value(v)}" for o, v in choice), dict(choice))
        for choice in choices
    ]


def _matching(
    patterns: Sequence[str], known: Mapping[str, Options], further: Mapping[str, Options], kind: str
) -> Mapping[str, Options]:
    found = dict[str, Options]()
    for pattern in patterns:
        matches = {name: known[name] for name in known if fnmatchcase(name, pattern)}
        if not matches and pattern not in further:
            raise UserError(f"the table has no {kind} {pattern!r}{nearest(pattern, known)}")
        found |= matches or {pattern: further[pattern]}
    return found or known


def _options_by(content: Any, key: str, file: str) -> dict[str, dict[str, Any]]:
    """The content of a key that maps labels to options."""
    found = {}
    for label, options in _mapping(content, key, file).items():
        found[label] = _mapping(options, f"{key}.{label}", file)
        _refuse_fixed(found[label], f"{key}.{label} in {file}")
    return found


def _refuse_fixed(options: Iterable[str], where: str) -> None:
    for option in FIXED.keys() & set(options):
        raise UserError(f"{where} sets {option}: give {FIXED[option]}")


def _mapping(content: Any, key: str, file: str) -> dict[str, Any]:
    """The content of a key, which maps names; an empty one is left empty."""
    if not isinstance(content, Mapping | None):
        raise UserError(f"{key} in {file} maps names to values, not {content!r}")
    return {str(name): value for name, value in (content or {}).items()}


def _method(label: str) -> str:
    """The method that a label names, also as papers spell it; empty for none."""
    known = label.lower().replace("-", "_")
    return known if known in ALGORITHMS else label if ":" in label else ""


def _list(values: Any) -> list[Any]:
    return [values] if isinstance(values, str) or not isinstance(values, Iterable) else [*values]
