"""Runs as a data frame, or laid out in rows and columns by the options in which they differ."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from pandas import Categorical, DataFrame, Series, concat, factorize, to_numeric

from fl_lightning.algorithms.modifiers import PARTS, method_name
from fl_lightning.errors import UserError
from fl_lightning.lab.report.grid import grid
from fl_lightning.lab.report.score import Score, is_evaluation
from fl_lightning.lab.report.table import Table
from fl_lightning.runs.options import EXTENT, NUMBERS
from fl_lightning.runs.run import Run, load_runs

IN_METHOD = "method", "algorithm", *PARTS
"""Options that the name of the method shows."""

NAMED = *IN_METHOD, "data", "model", "partition", "augment", "callback"
"""Options whose values are shown without the option: `iid`, but `lr 0.1`."""


def format_value(value: Any) -> str:
    """The text of an option's value, the same for 2 and 2.0: configurations write either."""
    if isinstance(value, list | tuple):
        return ",".join(map(format_value, value)) or "none"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return "none" if value is None else str(value)


def load(folders: str | Path | Iterable[str | Path]) -> DataFrame:
    """Load runs as a data frame with a row for each round of each run.

    The columns are `run` (its folder), `method` (such as `scaffold+lesam`), every option under its
    name in `config.yaml` (`batch_size`, `partition.alpha`, ...), `round`, and every recorded tag.
    What a run does not have is missing (NaN). A run that cannot be read is left out with a warning.

    Args:
        folders: Folders of runs, or folders that contain them.

    Raises:
        UserError: If a folder contains no run, or none of the runs can be read.

    Example::

        from fl_lightning.lab import report

        runs = report.load("runs/digits")
        means = runs.pivot_table("test/accuracy", index="round", columns="method")  # over seeds
        means.plot().figure.savefig("curves.png")
    """
    runs = load_runs([Path(folders)] if isinstance(folders, str | Path) else [*map(Path, folders)])
    frame = concat([run.frame() for run in runs], ignore_index=True)
    methods = {str(run.path): method_name(run.config) for run in runs}
    frame.insert(1, "method", frame["run"].map(methods))
    return frame


@dataclass(frozen=True, eq=False)
class Comparison:
    """Runs in rows and columns; the runs of a cell differ in their seed alone.

    Attributes:
        runs: The runs.
        options: The text of each option, a row for each run; empty where a run has no such option.
        rows: The options whose values are the rows.
        columns: The options whose values are the columns.
        labels: Other names for methods, for values such as `lr 0.1`, for whole rows and columns.
        notes: Remarks for the reader.
    """

    runs: Sequence[Run]
    options: DataFrame
    rows: Sequence[str] = ("method",)
    columns: Sequence[str] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()

    @cached_property
    def row_names(self) -> list[str]:
        """The name of each run's row, such as `fedsam, algorithm.rho 0.1`."""
        return self._names(self.rows)

    @cached_property
    def column_names(self) -> "Categorical[str]":
        """The name of each run's column."""
        return self.headings(self.columns)

    def headings(self, options: Sequence[str]) -> "Categorical[str]":
        """The name of each run by its values of some options; the categories are in their order."""
        names = Series(self._names(options), dtype=object)
        if not options:
            return Categorical(names)
        order = self.options[[*options]].apply(_sort_key).sort_values([*options], kind="stable")
        return Categorical(names, names[order.index].unique())

    def table(self, scores: Sequence[Score | str] = ("last",), **options: Any) -> Table:
        """The scores of the runs; `options` are arguments of `grid`."""
        table = grid(self.runs, self.row_names, self.column_names, scores, **options)
        return replace(table, notes=[*self.notes, *table.notes])

    def _names(self, options: Sequence[str]) -> list[str]:
        names = []
        for texts in self.options[[*options]].to_numpy():
            parts = [_part(o, text) for o, text in zip(options, texts, strict=True) if text]
            name = ", ".join(dict.fromkeys(self.labels.get(part, part) for part in parts))
            names.append(self.labels.get(name, name) or "none" * bool(options))
        return names


def compare(
    runs: Sequence[Run],
    rows: Sequence[str] = ("method",),
    columns: Sequence[str] = (),
    labels: Mapping[str, str] | None = None,
    keep_all: bool = False,
) -> Comparison:
    """Lay runs out in rows and columns.

    The runs of a cell differ in their seed alone: any other option in which they differ becomes
    part of the row. An option that has one value in each row, but not the same in all, does so,
    too, but for the digest of the user's code, which the name of the method stands for.

    Args:
        runs: The runs.
        rows: Options whose values are the rows. `method` is the algorithm with its modifiers.
            `partition` includes its own options, such as `partition.alpha`.
        columns: Options whose values are the columns.
        labels: Other names, as in `Comparison`. A folder's label is the method of all runs in it:
            it tells runs of equal options apart.
        keep_all: Keep runs that were not evaluated, and all of those with equal options and seed;
            else the longest of these is kept.

    Raises:
        UserError: If no run has been evaluated, or the runs do not differ in one of the options.
    """
    labels, notes = labels or {}, list[str]()
    if not keep_all:
        runs, notes = _distinct(runs, labels)
    options, unshown = _texts(runs, labels), list[str]()
    of_rows, of_columns = _asked(rows, options), _asked(columns, options)
    for option in (o for o in _varying(options) if o not in {*of_rows, *of_columns}):
        in_cells = options.groupby([*of_rows, *of_columns])[option].nunique()
        in_rows = options.groupby(of_rows)[option].nunique()
        of_row = in_rows.le(1).all()
        if in_cells.gt(1).any() or (of_row and option not in (*IN_METHOD, "code")):
            of_rows.append(option)
        elif not of_row and option not in IN_METHOD:
            unshown.append(option)
    if unshown:
        notes.append(f"the columns differ in {', '.join(unshown)}, too")
    return Comparison(runs, options, of_rows, of_columns, labels, notes)


def _distinct(runs: Sequence[Run], labels: Mapping[str, str]) -> tuple[list[Run], list[str]]:
    """The runs that have been evaluated, each once, and remarks on the others."""
    evaluated = [run for run in runs if _scores(run)]
    if not evaluated:
        raise UserError("none of these runs has been evaluated yet")
    left_out = [run.path for run in runs if run not in evaluated]
    notes = [f"{path} has not been evaluated yet and is left out" for path in left_out]
    texts = _texts(evaluated, labels).assign(seed=[run.config["seed"] for run in evaluated])
    keys, longest = texts.itertuples(index=False, name=None), dict[Any, Run]()
    for key, run in sorted(zip(keys, evaluated, strict=True), key=lambda pair: -pair[1].rounds):
        kept = longest.setdefault(key, run)
        if kept is not run:
            but = "" if _agree(run, kept) else ", but other numbers: label its folder to keep it"
            notes.append(f"{run.path} is left out: it has the options and seed of {kept.path}{but}")
    for run in longest.values():
        if run.ended is None:
            rounds = run.config["rounds"]
            failed = ", but has failed or is still at work" if run.rounds >= rounds else ""
            notes.append(f"{run.path} is at round {run.rounds} of {rounds}{failed}")
    return [run for run in evaluated if run in longest.values()], notes


def _agree(run: Run, other: Run) -> bool:
    """Whether two runs have the same first score in the rounds recorded by both."""
    both = DataFrame({"run": _scores(run), "other": _scores(other)}).dropna()
    return both["run"].equals(both["other"])


def _scores(run: Run) -> Mapping[int, float]:
    """The first score of each evaluated round."""
    of_tags = run.scalars.items()
    return next((of for tag, of in of_tags if of and is_evaluation(run, tag)), {})


def _texts(runs: Sequence[Run], labels: Mapping[str, str]) -> DataFrame:
    """The options of each run as text, and its method, or the label of its innermost folder."""
    folders = {Path(text): label for text, label in labels.items()}
    rows = [
        {o: format_value(v) for o, v in run.config.identity(NUMBERS, EXTENT).items() if o != "seed"}
        for run in runs
    ]
    callbacks = _shortened([run.config.get("callback") or () for run in runs])
    for run, row, texts in zip(runs, rows, callbacks, strict=True):
        if texts:
            row["callback"] = format_value(texts)
        labeled = [folders[path] for path in (run.path, *run.path.parents) if path in folders]
        row["method"] = labeled[0] if labeled else method_name(run.config)
    return DataFrame(rows).fillna("")


def _shortened(callbacks: Sequence[Sequence[str]]) -> list[list[str]]:
    """The callbacks of each run, without the arguments that are alike wherever they are used."""
    alike = dict[str, set[str]]()
    for name, _, given in (text.partition(":") for texts in callbacks for text in texts):
        alike[name] = alike.get(name, {*given.split(",")}) & {*given.split(",")}

    def short(text: str) -> str:
        name, _, given = text.partition(":")
        own = ",".join(one for one in given.split(",") if one not in alike[name])
        return f"{name}:{own}" if own else name

    return [[*map(short, texts)] for texts in callbacks]


def _asked(names: Sequence[str], options: DataFrame) -> list[str]:
    """The varying options of these names, without those that the earlier ones determine."""
    shown = list[str]()
    for name in names:
        if name == "seed":
            raise UserError("runs that differ in their seed form one cell: give another option")
        parts = [o for o in map(str, options) if o == name or o.startswith(f"{name}.")]
        parts = [o for o in parts if options[o].nunique() > 1 or o == "method"]
        if not parts:
            others = ", ".join(o for o in _varying(options) if o not in ("algorithm", "method"))
            raise UserError(
                f"these runs do not differ in {name}; they differ in {others or 'nothing'}"
            )
        for part in parts:
            if not shown or options.groupby(shown)[part].nunique().gt(1).any():
                shown.append(part)
    return shown


def _varying(options: DataFrame) -> list[str]:
    """The options with several values, among the runs with a component if they are of one."""
    varying = []
    for option in map(str, options):
        component, dot, _ = option.partition(".")
        alike = options[component] if dot and component in options else [""] * len(options)
        if options[option].groupby(alike).nunique().gt(1).any():
            varying.append(option)
    return varying


def _part(option: str, value: str) -> str:
    """The text of an option with its value."""
    return value if option in NAMED and value != "none" else f"{option} {value}"


def _sort_key(values: "Series[str]") -> "Series[float]":
    """The order of numbers if all values are numbers, else that in which they appear."""
    numbers = to_numeric(values.replace({"": "-inf", "none": "-inf"}), errors="coerce")
    return Series(factorize(values)[0], values.index) if numbers.hasnans else numbers
