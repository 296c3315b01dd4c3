"""Which numbers an option or a coefficient may be: said in its annotation, checked where it is set."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, fields
from inspect import get_annotations
from math import inf
from typing import Annotated, Any, get_args


@dataclass(frozen=True)
class Range:
    """The numbers that are meant.

    Attributes:
        says: What they are, as in "lr is a positive number".
        holds: Whether a number is one of them; never for nan.
    """

    says: str
    holds: Callable[[float], bool]


FiniteFloat = Annotated[float, Range("a finite number", lambda x: -inf < x < inf)]
NonNegativeFloat = Annotated[float, Range("a finite number of at least 0", lambda x: 0 <= x < inf)]
PositiveFloat = Annotated[float, Range("a positive number", lambda x: 0 < x < inf)]
UnitInterval = Annotated[float, Range("a number from 0 to 1", lambda x: 0 <= x <= 1)]
PositiveFraction = Annotated[float, Range("a number above 0 and at most 1", lambda x: 0 < x <= 1)]
BelowOneFloat = Annotated[float, Range("a number of at least 0 and below 1", lambda x: 0 <= x < 1)]
NonNegativeInt = Annotated[int, Range("a whole number of at least 0", lambda x: x >= 0)]
PositiveInt = Annotated[int, Range("a whole number of at least 1", lambda x: x >= 1)]


def check(thing: Any, of: str = "") -> None:
    """Compare the fields of a dataclass with the ranges in their annotations; None always passes.

    Args:
        thing: The dataclass.
        of: How a message goes on after the field's name, e.g. " of SAM".

    Raises:
        ValueError: If a number is out of its range.
    """
    for name, range in _ranges(type(thing)):
        value = getattr(thing, name)
        if value is not None and not range.holds(value):
            raise ValueError(f"{name}{of} is {range.says}, not {value}")


def _ranges(dataclass: type) -> Iterator[tuple[str, Range]]:
    for field in fields(dataclass):
        hint = _evaluated(dataclass, field.name, field.type)
        for kind in (hint, *get_args(hint)):  # `Positive | None` is a union
            yield from (
                (field.name, note)
                for note in getattr(kind, "__metadata__", ())
                if isinstance(note, Range)
            )


def _evaluated(dataclass: type, field: str, hint: Any) -> Any:
    """A field's annotation, which is text where `from __future__ import annotations` stands above it.

    Text whose names are known to type checkers alone stays text. `get_type_hints` would give up all
    fields for one of those, and it does not find the names of a file that was run, which
    `--algorithm file.py:function` does.
    """
    if isinstance(hint, str):
        with suppress(Exception):
            owner: Any = next(base for base in dataclass.__mro__ if field in get_annotations(base))
            return eval(hint, owner.__init__.__globals__)
    return hint
