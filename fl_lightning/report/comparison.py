"""Comparison of runs: experiments, their labels, and the options in which they differ."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pandas import Categorical, DataFrame, Series, to_numeric

from fl_lightning.algorithms import modifiers
from fl_lightning.algorithms.registry import functions
from fl_lightning.runs.resume import CHANGES_ROUNDING_ONLY
from fl_lightning.runs.run import Run

NO_DIFFERENCE = CHANGES_ROUNDING_ONLY | {
    "seed",
    "checkpoint_every",
    "keep_checkpoints",
    "client_state_memory",
    "deterministic",
}
"""Options in which runs of one experiment may differ."""

NO_MODIFIER = {part: next(iter(functions(module))) for part, module in modifiers.PARTS.items()}
"""The choice that changes nothing, for each option that modifies the algorithm."""


def format_value(value: Any) -> str:
    """The text of an option's value, the same for 2 and 2.0: configurations write either."""
    if isinstance(value, list | tuple):
        return ",".join(map(format_value, value)) or "none"
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return "none" if value is None else str(value)


def method_name(options: Mapping[str, Any]) -> str:
    """The algorithm and its modifiers, such as `scaffold+lesam`."""
    added = [options.get(part) for part, none in NO_MODIFIER.items() if options.get(part) != none]
    return "+".join([options["algorithm"], *(name for name in added if name not in (None, "none"))])


@dataclass(frozen=True, eq=False)
class Comparison:
    """Runs and the options in which they differ. Lists have one entry per run.

    Attributes:
        runs: The runs. Those with equal labels are one experiment with different seeds.
        notes: Remarks for the reader of a table.
    """

    runs: Sequence[Run]
    notes: Sequence[str] = ()

    @staticmethod
    def of(runs: Sequence[Run]) -> "Comparison":
        """Leave out runs without an evaluation, and repeated ones except the longest.

        Raises:
            ValueError: If no run has been evaluated.
        """
        kept, notes = dict[tuple[Any, ...], Run](), []
        for run in runs:
            if not run.scalars.get("test/accuracy"):
                notes.append(f"{run.path} has not been evaluated yet and is left out")
                continue
            key = (run.options["seed"], *sorted(_options(run).items()))
            other = kept.get(key, run)
            kept[key] = max(other, run, key=lambda run: run.rounds)
            if other is not run:
                dropped = run if kept[key] is other else other
                and_numbers = "" if _agree(run, other) else ", but other numbers"
                notes.append(
                    f"{dropped.path} is left out: it has the options and seed of {kept[key].path}"
                    + and_numbers
                )
        if not kept:
            raise ValueError("none of these runs has been evaluated yet")
        for run in kept.values():
            if run.rounds < run.options["rounds"]:
                notes.append(f"{run.path} is at round {run.rounds} of {run.options['rounds']}")
        return Comparison([*kept.values()], notes)

    @cached_property
    def options(self) -> DataFrame:
        """The options as text, empty if absent; NaN if they belong to a choice not made."""
        frame = DataFrame([_options(run) for run in self.runs])
        for option in map(str, frame):
            choice, dot, _ = option.partition(".")
            texts = frame[option].fillna("")
            if dot and choice in frame:
                made = frame[option].notna().groupby(frame[choice]).transform("any")
                texts = texts.where(made)
            frame[option] = texts
        return frame

    @cached_property
    def varying(self) -> list[str]:
        """Options of which the runs have several values."""
        return [str(option) for option, count in self.options.nunique().items() if count > 1]

    @cached_property
    def differing(self) -> list[str]:
        """The varying options, without the method and its own options."""
        return [option for option in self.varying if not _of_method(option)]

    def methods(self, without: str | None = None) -> list[str]:
        """Each run's method, with those of its own options that vary."""
        names = Series([method_name(run.options) for run in self.runs])
        own = [o for o in self.varying if "." in o and _of_method(o) and o != without]
        shown = self.options[own].where(self.options[own].groupby(names).transform("nunique") > 1)
        return _labels(names, shown.rename(columns=lambda option: option.partition(".")[2]))

    def labels(self, without: str | None = None) -> list[str]:
        """Each run's method and differing options, except `without` and its own options."""
        rest = [o for o in self.differing if without is None or not _belongs(o, without)]
        return _labels(self.methods(without), self.options[rest])

    def set_ups(self) -> list[str]:
        """Each run's differing options: methods in equal set-ups can be ranked."""
        return _labels([""] * len(self.runs), self.options[self.differing])

    def headings(self, option: str | None) -> "Categorical[str]":
        """Each run's value of an option and of what belongs to it, in the order of numbers.

        Raises:
            ValueError: If the runs do not differ in the option.
        """
        if option is None:
            return Categorical([""] * len(self.runs))
        if option not in self.varying or option == "algorithm":  # methods are the rows
            others = ", ".join(o for o in self.varying if o != "algorithm")
            reason = others or "nothing but the algorithm"
            raise ValueError(f"these runs do not differ in {option}, but in {reason}")
        parts = [o for o in self.varying if _belongs(o, option)]
        headings = Series(_labels([""] * len(self.runs), self.options[parts]))
        numbers = to_numeric(self.options[option].fillna("none").replace("none", "-inf"), "coerce")
        if not numbers.hasnans:
            headings = headings[numbers.sort_values(kind="stable").index]
        return Categorical(headings.sort_index(), categories=headings.unique())


def _options(run: Run) -> dict[str, str]:
    return {o: format_value(v) for o, v in run.options.items() if o not in NO_DIFFERENCE}


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
    rows = zip(names, texts, strict=True)
    return [", ".join(filter(None, [name, *text])) or "none" for name, text in rows]


def _of_method(option: str) -> bool:
    return option.partition(".")[0] in ("algorithm", *modifiers.PARTS)


def _belongs(option: str, part: str) -> bool:
    return option == part or option.startswith(f"{part}.")
