"""The YAML file of a table: rows, columns, sweeps, seeds, score and published numbers."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from itertools import product
from typing import Any

from fl_lightning.algorithms.registry import ALGORITHMS
from fl_lightning.cli.config_files import TABLE_KEYS, read_chain
from fl_lightning.report.comparison import format_value
from fl_lightning.runs.converters import nearest

Options = Mapping[str, Any]
"""Options by name as in a preset."""


@dataclass(frozen=True)
class TableFile:
    """A table as its file describes it.

    Attributes:
        name: The file, or the preset such as `fedssg/table4`.
        recipe: The recipe that runs make, by name or file.
        rows: Options by the label of a row; each method of `methods` if the file names none.
        columns: Options by the label of a column. `config` names presets that are read after the
            file, and `methods` has options of single methods in this column.
        sweep: Values by option; every combination is a column.
        tune: Values by option; a cell shows the best combination, chosen by its score.
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
        methods, table = dict[str, Any](), dict[str, Any]()
        for content in read_chain(name):
            methods |= _mapping(content.get("methods"), "methods", name)
            chosen = content.get("algorithm", {})
            chosen = chosen if isinstance(chosen, Mapping) else {"name": chosen}
            table["algorithm"] = str(chosen.get("name", table.get("algorithm", "")))
            for own in ("score", "spread", "over", "means", "published"):
                table.pop(own, None)  # numbers of another table
            table |= {key: content[key] for key in TABLE_KEYS if content.get(key) is not None}
        for key in ("rows", "columns", "sweep", "tune", "means", "published"):
            table[key] = _mapping(table.get(key), key, name)
        for key in ("rows", "columns"):
            table[key] = {k: _mapping(v, f"{key}.{k}", name) for k, v in table[key].items()}
        rows = table["rows"] or {method: {} for method in methods}
        for row in rows:
            if not (rows[row] or _method(row) or table["algorithm"]):
                near = nearest(row, ALGORITHMS)
                raise ValueError(f"row {row!r} in {name} has no options and is no algorithm{near}")
        table["rows"] = {
            label: {"algorithm": method, **row} if (method := _method(label)) else row
            for label, row in rows.items()
        }
        table["columns"] = table["columns"] or {"": {}}
        for column, options in table["columns"].items():
            where = f"columns.{column}.methods"
            options["methods"] = _mapping(options.get("methods"), where, name)
            for method, own in options["methods"].items():
                if not _method(method):
                    near = nearest(method, ALGORITHMS)
                    raise ValueError(f"columns.{column} in {name} has no method {method!r}{near}")
                options["methods"][method] = _mapping(own, f"{where}.{method}", name)
        table["recipe"] = str(table.get("recipe", TableFile.recipe))
        spread = table.get("spread", "seeds")
        if spread not in ("seeds", "rounds", "clients"):
            raise ValueError(f"spread in {name} is seeds, rounds or clients, not {spread!r}")
        table["over"] = str(table.get("over", ""))
        table["means"] = {k: [*map(str, _list(v))] for k, v in table["means"].items()}
        table["seeds"] = tuple(dict.fromkeys(_list(table.get("seeds", 0))))
        table["scores"] = tuple(map(str, _list(table.pop("score", "last"))))
        for key in ("seeds", "scores"):
            if not table[key]:
                raise ValueError(f"{key.removesuffix('s')} in {name} is empty: name one at least")
        published = table.pop("published")
        file = TableFile(name, **table)
        file.check_over(file.over)
        if not published.keys() <= set(file.scores):
            published = {file.scores[0]: published}
        numbers = {
            score: {
                row: file._numbers(row, values)
                for row, values in _mapping(of_score, f"published.{score}", name).items()
            }
            for score, of_score in published.items()
        }
        return replace(file, published=numbers)

    def check_over(self, row: str) -> None:
        """Raise a ValueError unless the table has this row, or none is named."""
        if row and row not in self.rows:
            raise ValueError(
                f"{self.name} has no row {row!r} to compare with{nearest(row, self.rows)}"
            )

    def _numbers(self, row: str, numbers: Any) -> dict[str, float]:
        """Published numbers of a row by column; a list has them in the order of the columns."""
        columns = [column for column, *_ in self.swept_columns()]
        where = f"published.{row} in {self.name}"
        if row not in self.rows:
            raise ValueError(f"{where} has no row{nearest(row, self.rows)}")
        if not isinstance(numbers, Mapping):
            numbers = _list(numbers)
            if len(numbers) != len(columns):
                raise ValueError(
                    f"{where} has {len(numbers)} numbers for {len(columns)} columns: "
                    "write none where there is no number"
                )
            numbers = dict(zip(columns, numbers, strict=True))
        if unknown := [column for column in numbers if column not in columns]:
            near = nearest(unknown[0], columns)
            raise ValueError(f"{where} has no column {unknown[0]!r}{near}")
        numbers = {c: n for c, n in numbers.items() if n not in (None, "none")}
        for number in numbers.values():
            if not isinstance(number, int | float):
                raise ValueError(f"{where} has {number!r}, which is no number")
        return {column: float(number) for column, number in numbers.items()}

    def select(self, rows: Sequence[str] = (), columns: Sequence[str] = ()) -> "TableFile":
        """Keep rows and columns by labels or patterns, such as `fed*`; none keeps all.

        An algorithm without a row gets one. Raises a ValueError if a pattern fits none.
        """
        kept: dict[str, Any] = {}
        if rows:
            own = [name for name in rows if ":" in name]
            added = {name: {"algorithm": name} for name in (*ALGORITHMS, *own)}
            kept["rows"] = _matching(rows, self.rows, added, "row")
        if columns:
            kept["columns"] = _matching(columns, self.columns, {}, "column")
        return replace(self, **kept)

    def swept_columns(self) -> list[tuple[str, Options, Options]]:
        """Labels of the columns, their options, and one combination of the sweep's values."""
        return [
            (", ".join(filter(None, [column, label])), options, values)
            for column, options in self.columns.items()
            for label, values in combinations(self.sweep)
        ]


def combinations(grid: Mapping[str, Sequence[Any]]) -> list[tuple[str, Options]]:
    """Every choice of one value for each option, with a label such as `rho 0.1`."""
    choices = product(*([(option, value) for value in _list(grid[option])] for option in grid))
    return [
        (", ".join(f"{o.rpartition('.')[2]} {format_value(v)}" for o, v in choice), dict(choice))
        for choice in choices
    ]


def _matching(
    patterns: Sequence[str], known: Mapping[str, Options], further: Mapping[str, Options], kind: str
) -> dict[str, Options]:
    found = dict[str, Options]()
    for pattern in patterns:
        matches = {name: known[name] for name in known if fnmatchcase(name, pattern)}
        if not matches and pattern not in further:
            raise ValueError(f"the table has no {kind} {pattern!r}{nearest(pattern, known)}")
        found |= matches or {pattern: further[pattern]}
    return found


def _mapping(content: Any, key: str, file: str) -> dict[str, Any]:
    """The content of a key, which maps names; an empty one is left empty."""
    if not isinstance(content, Mapping | None):
        raise ValueError(f"{key} in {file} maps names to values, not {content!r}")
    return {str(name): value for name, value in (content or {}).items()}


def _method(label: str) -> str:
    """The method that a label names, also as papers spell it; empty for none."""
    known = label.lower().replace("-", "_")
    return known if known in ALGORITHMS else label if ":" in label else ""


def _list(values: Any) -> list[Any]:
    return [values] if isinstance(values, str) or not isinstance(values, Iterable) else [*values]
