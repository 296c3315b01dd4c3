"""Comparison of runs: experiments, their labels, and the options in which they differ."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from pandas import Categorical, DataFrame, Series, factorize, to_numeric

from fl_lightning.algorithms.modifiers import PARTS, method_name
from fl_lightning.report.grid import grid
from fl_lightning.report.score import Score
from fl_lightning.report.table import Table
from fl_lightning.runs.effect import EXTENT, NUMBERS
from fl_lightning.runs.run import Run

TUNED = {
    "lr",
    "lr_decay",
    "momentum",
    "weight_decay",
    "clip_norm",
    "batch_size",
    "finetune_lr",
    "weighting",
    "server_lr",
}
"""General options that count as the method's own: papers tune them for each method."""

WORDS = {"none", "True", "False"}
"""Values that mean nothing without the name of their option."""


def format_value(value: Any) -> str:
    """The text of an option's value, the same for 2 and 2.0: configurations write either."""
    if isinstance(value, list | tuple):
        return ",".join(map(format_value, value)) or "none"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return "none" if value is None else str(value)


@dataclass(frozen=True, eq=False)
class Comparison:
    """Runs and the options in which they differ, laid out in rows and columns.

    Attributes:
        runs: The runs. Those of equal row and column are one experiment with different seeds.
        across: The options whose values are the columns.
        labels: Other names for methods, rows, columns and folders. That of a folder is the name of
            the method of all runs in it, which tells runs of equal options apart.
        notes: Remarks for the reader of a table.
    """

    runs: Sequence[Run]
    across: Sequence[str] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()

    @staticmethod
    def of(
        runs: Sequence[Run], across: Sequence[str] = (), labels: Mapping[str, str] | None = None
    ) -> "Comparison":
        """Leave out runs without an evaluation, and repeated ones except the longest.

        Raises a ValueError if no run has been evaluated.
        """
        kept, notes, labels = dict[tuple[Any, ...], Run](), [], labels or {}
        texts = _texts(runs)
        for place, run in enumerate(runs):
            if not run.scalars.get("test/accuracy"):
                notes.append(f"{run.path} has not been evaluated yet and is left out")
                continue
            key = (_name(run, labels), run.config["seed"], *texts.loc[place])
            other = kept.get(key, run)
            kept[key] = max(other, run, key=lambda run: run.rounds)
            if other is not run:
                dropped = run if kept[key] is other else other
                same = f"it has the options and seed of {kept[key].path}"
                but = "" if _agree(run, other) else ", but other numbers"
                notes.append(f"{dropped.path} is left out: {same}{but}")
        if not kept:
            raise ValueError("none of these runs has been evaluated yet")
        for run in kept.values():
            if run.rounds < (rounds := run.config["rounds"]):
                notes.append(f"{run.path} is at round {run.rounds} of {rounds}")
        return Comparison([*kept.values()], across, labels, notes)

    @cached_property
    def options(self) -> DataFrame:
        """The options as text, empty if absent; NaN if they belong to a choice not made."""
        frame = _texts(self.runs)
        for option in map(str, frame):
            choice, dot, _ = option.partition(".")
            if dot and choice in frame:
                made = frame[option].ne("").groupby(frame[choice]).transform("any")
                frame[option] = frame[option].where(made)
        return frame

    @cached_property
    def varying(self) -> list[str]:
        """Options of which the runs have several values."""
        return [str(option) for option, count in self.options.nunique().items() if count > 1]

    @cached_property
    def differing(self) -> list[str]:
        """The varying options that are neither the method's nor columns."""
        return [o for o in self.varying if not _of_method(o) and not self._is_across(o)]

    @cached_property
    def columns(self) -> "Categorical[str]":
        """The heading of each run's column."""
        return self.headings(self.across)

    @cached_property
    def groups(self) -> list[str]:
        """Each run's setting, as far as it differs within a column: equal ones can be ranked."""
        settings = self.options[[o for o in self.differing if o not in TUNED]].fillna("")
        several = settings.groupby(Series(self.columns), observed=True).nunique().gt(1).any()
        return _labels([""] * len(self.runs), settings.loc[:, several])

    def methods(self, own: Sequence[str]) -> list[str]:
        """Each run's method, with those of the options `own` that vary for it within a column."""
        names, options = Series([_name(r, self.labels) for r in self.runs]), self.options[[*own]]
        several = options.groupby([names, Series(self.columns)], observed=True).transform("nunique")
        shown = options.where(several.gt(1).groupby(names).transform("any"))
        return _labels(names, shown.rename(columns=lambda option: option.rpartition(".")[2]))

    @cached_property
    def rows(self) -> list[str]:
        """Each run's method and setting."""
        own = [o for o in self.varying if o in TUNED or _of_method(o)]
        methods = self.methods([o for o in own if not self._is_across(o)])
        rows = [f"{m}, {g}".removesuffix(", ") for m, g in zip(methods, self.groups, strict=True)]
        return [self.labels.get(row, row) for row in rows]

    def headings(self, across: Sequence[str]) -> "Categorical[str]":
        """Each run's values of some options and of what belongs to them, in the order of numbers.

        Raises a ValueError if the runs do not differ in one of the options.
        """
        options, shown = self.options.fillna(""), list[str]()
        for option in across:
            parts = [o for o in self.varying if _belongs(o, option) and o != "algorithm"]
            if not parts:
                others = ", ".join(o for o in self.varying if o != "algorithm")
                raise ValueError(
                    f"these runs do not differ by {option}: besides the algorithm, they differ in "
                    f"{others or 'nothing'}"
                )
            for part in parts:  # those before may determine it
                if not shown or options.groupby(shown)[part].nunique().gt(1).any():
                    shown.append(part)
        if not shown:
            return Categorical([""] * len(self.runs))
        options = options[shown]
        order = options.apply(_sort_key).sort_values(shown, kind="stable").index
        headings = Series(map(_heading, options.to_dict("records"))).replace(self.labels)
        return Categorical(headings, categories=headings[order].unique())

    def means(self, options: Sequence[str]) -> dict[str, str]:
        """The name of each column's mean over the values of some of the options `across`."""
        rest = self.headings([option for option in self.across if option not in options])
        return {c: f"mean, {r}".removesuffix(", ") for c, r in zip(self.columns, rest, strict=True)}

    def table(self, scores: Sequence[Score | str], **options: Any) -> Table:
        """One row per method and one column per heading, or what distinguishes it and its scores.

        The scores are given themselves or by their names, `options` are those of `numbers`.
        """
        options["about"] = None if self.across else self._about()
        options["groups"] = dict(zip(self.rows, self.groups, strict=True))
        return grid(self.runs, self.rows, self.columns, scores, **options)

    def _about(self) -> DataFrame:
        """The method, differing options, seeds and rounds of each row."""
        frame = self.options[[o for o in self.differing if o != "rounds"]].fillna("")
        methods = self.methods([o for o in self.varying if _of_method(o)])
        frame.insert(0, "method", [self.labels.get(m, m) for m in methods])
        frame["seeds"] = [run.config["seed"] for run in self.runs]
        frame["rounds"] = [run.rounds for run in self.runs]
        how: dict[Any, Any] = dict.fromkeys(frame, "first") | {"rounds": _span}
        how["seeds"] = lambda seeds: ",".join(map(str, sorted(seeds)))
        return frame.groupby(self.rows, sort=False).agg(how)

    def _is_across(self, option: str) -> bool:
        return any(_belongs(option, across) for across in self.across)


def _name(run: Run, labels: Mapping[str, str]) -> str:
    """The label of the innermost folder that has one, or of the method, or the method."""
    folders = {Path(text): label for text, label in labels.items()}
    name = method_name(run.config)
    labeled = (folders[path] for path in (run.path, *run.path.parents) if path in folders)
    return next(labeled, labels.get(name, name))


def _texts(runs: Sequence[Run]) -> DataFrame:
    """The options that may tell runs apart, as text; empty if absent."""
    options = (run.config.identity(NUMBERS, EXTENT) for run in runs)
    return DataFrame(
        {o: format_value(v) for o, v in of_run.items() if o != "seed"} for of_run in options
    ).fillna("")


def _agree(run: Run, other: Run) -> bool:
    """True if two runs have the same test accuracies in the rounds recorded by both."""
    mine, theirs = run.scalars["test/accuracy"], other.scalars["test/accuracy"]
    return all(mine[k] == theirs[k] for k in mine.keys() & theirs.keys())


def _labels(names: Iterable[str], options: DataFrame) -> list[str]:
    """Each name with the options of its row, such as `fedsam, rho 0.1`."""
    texts = [
        [f"{option} {value}" for option, value in row.items() if value]
        for _, row in options.fillna("").iterrows()
    ]
    return [", ".join(filter(None, [name, *text])) for name, text in zip(names, texts, strict=True)]


def _heading(options: Mapping[Any, str]) -> str:
    """The text of a column, such as `mnist, alpha 0.1`: choices go without their option's name."""
    values = {str(o): v for o, v in options.items() if v}
    values = {o: v for o, v in values.items() if v != "none"} or values
    last = [option.rpartition(".")[2] for option in values]
    names = last if len({*last}) == len(last) else [*values]
    texts = zip(names, values.values(), strict=True)
    parts = [v if v[0].isalpha() and v not in WORDS else f"{o} {v}" for o, v in texts]
    return ", ".join(parts) or "none"


def _sort_key(values: "Series[str]") -> "Series[float]":
    """The order of numbers if all values are numbers, else that in which they appear."""
    numbers = to_numeric(values.replace({"": "-inf", "none": "-inf"}), errors="coerce")
    return Series(factorize(values)[0], values.index) if numbers.hasnans else numbers


def _of_method(option: str) -> bool:
    return option.partition(".")[0] in ("algorithm", *PARTS)


def _belongs(option: str, part: str) -> bool:
    return option == part or option.startswith(f"{part}.")


def _span(rounds: "Series[int]") -> str:
    low, high = rounds.min(), rounds.max()
    return str(low) if low == high else f"{low} to {high}"
