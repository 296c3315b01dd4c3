"""Axes of a table, options by label, as YAML and the command line give them."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import product
from typing import Any

from fl_lightning.errors import UserError, nearest
from fl_lightning.lab.report.comparison import format_value
from fl_lightning.runs.config import flat

Axis = Mapping[str, Mapping[str, Any]]
"""Options, as in a preset, by label."""

FIXED = {
    "seed": "seeds",
    "run_dir": "--runs",
    "resume": "nothing: begun runs are resumed",
    "devices": "--jobs: each run has one rank",
}
"""Options that a table sets for each run, and what to give instead."""


def combinations(values: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Every choice of one value for each option, by a label such as `rho 0.1, mu 1`."""
    refuse_fixed(values, "sweep or tune")
    for option in values:
        if not listed(values[option]):
            raise UserError(f"sweep or tune has no value of {option}: name one")
    choices = product(*([(o, value) for value in listed(of)] for o, of in values.items()))
    return {
        ", ".join(f"{o.rpartition('.')[2]} {format_value(v)}" for o, v in choice): dict(choice)
        for choice in choices
    }


def axis_of(content: Any, key: str) -> dict[str, dict[str, Any]]:
    """The content of a key that maps labels to options."""
    axis = {label: mapping(of, f"{key}.{label}") for label, of in mapping(content, key).items()}
    for label, options in axis.items():
        refuse_fixed(options, f"{key}.{label}")
    return axis


def set_by(*axes: Axis) -> dict[str, None]:
    """The options that any label of these axes sets, by their flat names, in order."""
    return dict.fromkeys(option for axis in axes for of in axis.values() for option in flat(of))


def mapping(content: Any, key: str) -> dict[str, Any]:
    """The content of a key that maps names to values, on one line each; nothing is empty."""
    if not isinstance(content, Mapping | None):
        raise UserError(f"{key} maps names to values, not {content!r}")
    found = dict[str, Any]()
    for name, value in (content or {}).items():
        if (label := " ".join(str(name).split())) in found:
            raise UserError(f"{key} has {label!r} twice: name one of them otherwise")
        found[label] = value
    return found


def refuse_fixed(options: Iterable[str], where: str) -> None:
    """Raise a UserError for an option that the table itself sets."""
    for option in FIXED.keys() & set(options):
        raise UserError(f"{where} sets {option}: give {FIXED[option]}")


def joined(*labels: str) -> str:
    """The labels that are not empty as one."""
    return ", ".join(filter(None, labels))


def fitting(labels: Iterable[str], patterns: Sequence[str]) -> list[str]:
    """The labels that are one of the patterns, or fit one."""
    return [label for label in labels if any(p == label or fnmatchcase(label, p) for p in patterns)]


def check_known(label: str, known: Collection[str], otherwise: str) -> None:
    """Raise a UserError, which begins with `otherwise`, for an unknown label."""
    if label not in known:
        raise UserError(f"{otherwise} {label!r}{nearest(label, known)}")


def listed(values: Any) -> list[Any]:
    """One value or several as a list."""
    return [values] if isinstance(values, str) or not isinstance(values, Iterable) else [*values]
