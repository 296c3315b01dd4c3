"""Which of several runs are one experiment with other seeds, and in what the others differ."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import Any

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
"""Options that make no experiment of its own."""


@dataclass(frozen=True, eq=False)
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
            options = {
                name: alike(value)
                for name, value in run.options.items()
                if name not in NO_DIFFERENCE
            }
            seeds = groups.setdefault(repr(sorted(options.items())), {})
            other = seeds.setdefault(run.options["seed"], run)
            if other is not run:
                kept, dropped = sorted((other, run), key=lambda run: -run.rounds)
                seeds[run.options["seed"]] = kept
                same = kept.agrees_with(dropped)
                how = "once more" if same else "with the same options and seed, but other numbers,"
                notes.append(f"{dropped.path} is {kept.path} {how} and is left out.")
        if not groups:
            raise ValueError("none of these runs has been evaluated yet")
        entries = tuple(
            Entry(tuple(seeds[seed] for seed in sorted(seeds))) for seeds in groups.values()
        )
        short = [
            run for entry in entries for run in entry.runs if run.rounds < run.options["rounds"]
        ]
        notes += [
            f"{run.path} has come to round {run.rounds} of {run.options['rounds']}."
            for run in short
        ]
        return Comparison(entries, tuple(notes))

    @cached_property
    def differing(self) -> list[str]:
        """Options in which experiments differ, but for the algorithm, what is added to it, and their own options."""
        names = dict.fromkeys(
            name for entry in self.entries for name in entry.options if not _of_method(name)
        )
        return [name for name in names if name not in NO_DIFFERENCE and self._varies(name)]

    @property
    def set_ups(self) -> set[tuple[str, ...]]:
        """All set-ups."""
        return {self.set_up(entry) for entry in self.entries}

    def set_up(self, entry: Entry) -> tuple[str, ...]:
        """The values of the differing options: methods in the same set-up can be told better or worse."""
        return tuple(repr(alike(entry.options.get(option))) for option in self.differing)

    def method(self, entry: Entry, without: str | None = None) -> str:
        """The algorithm and what is added to it, with those of their own options in which its experiments differ."""
        same = Comparison(tuple(e for e in self.entries if _method(e) == _method(entry)))
        own = [
            o
            for o in entry.options
            if "." in o and _of_method(o) and o != without and same._varies(o)
        ]
        return ", ".join(
            [_method(entry), *(f"{o.partition('.')[2]} {told(entry.options[o])}" for o in own)]
        )

    def label(self, entry: Entry, without: str | None = None) -> str:
        """All that tells an experiment from the others, but for the option `without` and what belongs to it."""
        rest = [
            o
            for o in self.differing
            if o in entry.options and (without is None or not _belongs(o, without))
        ]
        return ", ".join(
            [
                self.method(entry, without),
                *(f"{option} {told(entry.options[option])}" for option in rest),
            ]
        )

    def listed(self) -> dict[str, list[Entry | None]]:
        """The one experiment with each label."""
        return {self.label(entry): [entry] for entry in self.entries}

    def across(self, option: str) -> tuple[list[str], dict[str, list[Entry | None]]]:
        """The values of an option, told, and by label the experiment with each of them, or None where there is none.

        Raises:
            ValueError: If the experiments do not differ in the option.
        """
        names = dict.fromkeys(name for entry in self.entries for name in entry.options)
        ways = [name for name in names if name not in NO_DIFFERENCE and self._varies(name)]
        if option not in ways or option == "algorithm":  # methods are the rows
            others = ", ".join(o for o in ways if o != "algorithm") or "nothing but the algorithm"
            raise ValueError(f"these runs do not differ in {option}, but in {others}")
        parts = [o for o in ways if _belongs(o, option)]
        keys = {entry: tuple(alike(entry.options.get(o)) for o in parts) for entry in self.entries}
        values = {keys[entry]: _heading(parts, entry) for entry in self.entries}
        order = sorted(values, key=_order) if all(map(_sortable, values)) else list(values)
        rows: dict[str, list[Entry | None]] = {}
        for entry in self.entries:
            row = rows.setdefault(self.label(entry, without=option), [None] * len(order))
            row[order.index(keys[entry])] = entry
        return [values[key] for key in order], rows

    def _varies(self, option: str) -> bool:
        """Whether it does, among those that made the same choice if it is an option of something chosen."""
        part, dot, _ = option.partition(".")
        values: dict[Any, set[str]] = {}
        for entry in self.entries:
            values.setdefault(dot and entry.options.get(part), set()).add(
                repr(alike(entry.options.get(option)))
            )
        return any(len(different) > 1 for different in values.values())


def told(value: Any) -> str:
    """An option's value, for people."""
    return (
        ",".join(map(str, value))
        if isinstance(value, list)
        else "none"
        if value is None
        else str(value)
    )


def alike(value: Any) -> Any:
    """The same for 2 and 2.0, which configurations write for each other."""
    if isinstance(value, list):
        return tuple(map(alike, value))
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _of_method(option: str) -> bool:
    return option.partition(".")[0] in ("algorithm", *modifiers.PARTS)


def _belongs(option: str, part: str) -> bool:
    return option == part or option.startswith(f"{part}.")


def _method(entry: Entry) -> str:
    """As a run's folder is named: scaffold+lesam."""
    plain = {part: next(iter(functions(module))) for part, module in modifiers.PARTS.items()}
    added = (entry.options.get(part) for part in plain)
    return "+".join(
        [
            entry.options["algorithm"],
            *(str(name) for name in added if name not in (None, *plain.values())),
        ]
    )


def _heading(parts: Sequence[str], entry: Entry) -> str:
    return (
        ", ".join(
            f"{option} {told(entry.options[option])}" for option in parts if option in entry.options
        )
        or "none"
    )


def _sortable(key: tuple[Any, ...]) -> bool:
    return len(key) == 1 and (key[0] is None or isinstance(key[0], float))


def _order(key: tuple[Any, ...]) -> float:
    return -inf if key[0] is None else float(key[0])
