"""Annotated number types: the range and the help text of an option, stated once."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import cache, wraps
from inspect import get_annotations, signature
from math import inf
from typing import Annotated, Any, Literal, ParamSpec, TypeVar, get_args, get_origin, get_type_hints

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class Range:
    """The values that an annotated field or parameter accepts.

    Attributes:
        says: Their description, as in "lr is a positive number".
        holds: Whether a value is one of them; False for nan.
    """

    says: str
    holds: Callable[[Any], bool]


FiniteFloat = Annotated[float, Range("a finite number", lambda x: -inf < x < inf)]
NonNegativeFloat = Annotated[float, Range("a finite number of at least 0", lambda x: 0 <= x < inf)]
PositiveFloat = Annotated[float, Range("a positive number", lambda x: 0 < x < inf)]
UnitInterval = Annotated[float, Range("a number from 0 to 1", lambda x: 0 <= x <= 1)]
PositiveFraction = Annotated[float, Range("a number above 0 and at most 1", lambda x: 0 < x <= 1)]
OpenFraction = Annotated[float, Range("a number above 0 and below 1", lambda x: 0 < x < 1)]
BelowOneFloat = Annotated[float, Range("a number of at least 0 and below 1", lambda x: 0 <= x < 1)]
NonNegativeInt = Annotated[
    int, Range("a whole number of at least 0", lambda x: x >= 0 and x % 1 == 0)
]
PositiveInt = Annotated[int, Range("a whole number of at least 1", lambda x: x >= 1 and x % 1 == 0)]


def check(thing: Any, of: str = "") -> None:
    """Raise a ValueError for a field out of the range in its annotation; None always passes.

    A message says `of` after the field's name, e.g. " of SAM".
    """
    for field in fields(thing):
        hint = _evaluated(type(thing), field.name, field.type)
        _check(f"{field.name}{of}", getattr(thing, field.name), hint)


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """The function; its calls raise a ValueError for an argument out of its annotation's range."""
    hints = cache(lambda: get_type_hints(function, include_extras=True))
    names = tuple(signature(function).parameters)

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        for name, value in (*zip(names, args, strict=False), *kwargs.items()):
            _check(f"{name} of {function.__name__}", value, hints().get(name))
        return function(*args, **kwargs)

    return call


def notes(hint: Any) -> Iterator[Any]:
    """Everything that an annotation says besides the type: ranges and `Doc`s, also in a union."""
    yield from getattr(hint, "__metadata__", ())
    for part in get_args(hint):
        yield from notes(part)


def _check(name: str, value: Any, hint: Any) -> None:
    if value is None:
        return
    for part in value if isinstance(value, tuple | list) else (value,):
        for range in _ranges(hint):
            if not range.holds(part):
                raise ValueError(f"{name} is {range.says}, not {part}")


def _ranges(hint: Any) -> Iterator[Range]:
    yield from (note for note in notes(hint) if isinstance(note, Range))
    for kind in (hint, *get_args(hint)):
        if get_origin(kind) is Literal:
            yield Range(f"one of {', '.join(get_args(kind))}", get_args(kind).__contains__)


def _evaluated(dataclass: type, field: str, hint: Any) -> Any:
    """A field's annotation, also where `from __future__ import annotations` made it text.

    `get_type_hints` would give up all fields for one name that only type checkers know, and does
    not find the names of a file that was run, as `--algorithm file.py:function` does. Such text
    stays text here.
    """
    if isinstance(hint, str):
        with suppress(Exception):
            owner: Any = next(base for base in dataclass.__mro__ if field in get_annotations(base))
            return eval(hint, owner.__init__.__globals__)
    return hint
