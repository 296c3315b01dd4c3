"""Which of several runs are one experiment with other seeds, and in what the others differ."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from fl_lightning.options import ROUNDING
from fl_lightning.report.run import Run

NO_DIFFERENCE = ROUNDING | {"seed", "checkpoint_every", "keep_checkpoints", "state_memory", "deterministic"}
"""Options that make no experiment of its own."""


@dataclass(frozen=True)
class Entry:
    """Runs of one experiment, with different seeds.

    Attributes:
        runs: By seed.
    """

    runs: tuple[Run, ...]

    @property
    def options(self) -> Mapping[str, Any]:
        """Their options; the seed is the first one's."""
        return self.runs[0].options

    @property
    def seeds(self) -> list[Any]:
        """Their seeds."""
        return [run.options["seed"] for run in self.runs]


@dataclass(frozen=True)
class Comparison:
    """Runs, sorted into experiments.

    Attributes:
        entries: The experiments, in the order in which the first runs of each were given.
        notes: What the reader of a table should know, a sentence each.
    """

    entries: tuple[Entry, ...]
    notes: tuple[str, ...] = ()

    @staticmethod
    def of(runs: Sequence[Run]) -> "Comparison":
        """Sort runs into experiments. Of two with the same options and seed the one that came further counts.

        Raises:
            ValueError: If no run has been evaluated.
        """
        groups: dict[str, dict[Any, Run]] = {}
        notes = []
        for run in runs:
            if not run.scalars.get("test/accuracy"):
                notes.append(f"{run.path} has not been evaluated yet and is left out.")
                continue
            told = {name: value for name, value in run.options.items() if name not in NO_DIFFERENCE}
            seeds = groups.setdefault(repr(sorted(told.items())), {})
            other = seeds.setdefault(run.options["seed"], run)
            if other is not run:
                kept, dropped = sorted((other, run), key=lambda run: -run.rounds)
                seeds[run.options["seed"]] = kept
                notes.append(f"{dropped.path} is {kept.path} once more and is left out.")
        if not groups:
            raise ValueError("none of these runs has been evaluated yet")
        entries = tuple(Entry(tuple(seeds[seed] for seed in sorted(seeds))) for seeds in groups.values())
        short = [run for entry in entries for run in entry.runs if run.rounds < run.options["rounds"]]
        notes += [f"{run.path} has come to round {run.rounds} of {run.options['rounds']}." for run in short]
        return Comparison(entries, tuple(notes))

    @cached_property
    def differing(self) -> list[str]:
        """Options in which experiments differ, but for the algorithm and its own."""
        names = dict.fromkeys(name for entry in self.entries for name in entry.options)
        of_algorithm = [name for name in names if name == "algorithm" or name.startswith("algorithm.")]
        return [name for name in names if name not in {*of_algorithm, *NO_DIFFERENCE} and self.values(name)[1:]]

    @property
    def set_ups(self) -> set[tuple[str, ...]]:
        """All set-ups."""
        return {self.set_up(entry) for entry in self.entries}

    def values(self, option: str) -> list[Any]:
        """The different values of an option, in the order of the experiments; None where one lacks it."""
        return list({repr(value): value for value in (e.options.get(option) for e in self.entries)}.values())

    def set_up(self, entry: Entry) -> tuple[str, ...]:
        """The values of the differing options: methods in the same set-up can be told better or worse."""
        return tuple(repr(entry.options.get(option)) for option in self.differing)

    def method(self, entry: Entry) -> str:
        """The algorithm, with those of its own options in which its experiments differ."""
        name = entry.options["algorithm"]
        same = Comparison(tuple(e for e in self.entries if e.options["algorithm"] == name))
        own = [option for option in entry.options if option.startswith("algorithm.") and same.values(option)[1:]]
        return ", ".join([name, *(f"{option.partition('.')[2]} {told(entry.options[option])}" for option in own)])

    def label(self, entry: Entry, without: str | None = None) -> str:
        """All that tells an experiment from the others, but for the option `without`."""
        rest = [option for option in self.differing if option != without and option in entry.options]
        return ", ".join([self.method(entry), *(f"{option} {told(entry.options[option])}" for option in rest)])

    def listed(self) -> dict[str, list[Entry | None]]:
        """The one experiment with each label."""
        return {self.label(entry): [entry] for entry in self.entries}

    def across(self, option: str) -> dict[str, list[Entry | None]]:
        """By label, but for the option: the experiment with each of its values, or None where there is none.

        Raises:
            ValueError: If the experiments do not differ in the option.
        """
        if option not in self.differing:
            others = ", ".join(self.differing) or "nothing but the algorithm and its own options"
            raise ValueError(f"these runs do not differ in {option}, but in {others}")
        values = [repr(value) for value in self.values(option)]
        rows: dict[str, list[Entry | None]] = {
            self.label(entry, without=option): [None] * len(values) for entry in self.entries
        }
        for entry in self.entries:
            rows[self.label(entry, without=option)][values.index(repr(entry.options.get(option)))] = entry
        return rows


def told(value: Any) -> str:
    """An option's value, for people."""
    return ",".join(map(str, value)) if isinstance(value, list) else "none" if value is None else str(value)
