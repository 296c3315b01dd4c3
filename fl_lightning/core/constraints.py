"""Annotated number types: the range and the help text of an option, stated once."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import cache, wraps
from inspect import get_annotations, signature
from math import inf
from typing import Annotated, Any, Literal, ParamSpec, TypeVar, get_args, get_origin, get_type_hints

from fl_lightning.core.curves import Curve
from fl_lightning.core.draws import Draw
from fl_lightning.errors import UserError

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, repr=False)
class Range:
    """The numbers that an annotated field or parameter accepts; nan is none of them.

    Attributes:
        says: Their description, as in "lr is a positive number".
        low: The lower bound.
        high: The upper bound.
        ends: Whether the bounds belong to it, as in "[0, 1)".
        whole: Whether only whole numbers do.
    """

    says: str
    low: float = -inf
    high: float = inf
    ends: Literal["[]", "[)", "(]", "()"] = "[]"
    whole: bool = False

    def __contains__(self, x: float) -> bool:
        above = self.low <= x if self.ends[0] == "[" else self.low < x
        below = x <= self.high if self.ends[1] == "]" else x < self.high
        return above and below and (not self.whole or x % 1 == 0)

    def __repr__(self) -> str:
        """As signatures show it, e.g. `int >= 1` or `0 <= float < 1`."""
        number = "int" if self.whole else "float"
        left, right = ("<" if end in "()" else "<=" for end in self.ends)
        if self.high == inf > -self.low:
            return f"{number} {left.replace('<', '>')} {self.low}"
        return f"{self.low} {left} {number} {right} {self.high}"


FiniteFloat = Annotated[float, Range("a finite number", ends="()")]
NonNegativeFloat = Annotated[float, Range("a finite number of at least 0", 0, ends="[)")]
PositiveFloat = Annotated[float, Range("a positive number", 0, ends="()")]
UnitInterval = Annotated[float, Range("a number from 0 to 1", 0, 1)]
PositiveFraction = Annotated[float, Range("a number above 0 and at most 1", 0, 1, "(]")]
OpenFraction = Annotated[float, Range("a number above 0 and below 1", 0, 1, "()")]
BelowOneFloat = Annotated[float, Range("a number of at least 0 and below 1", 0, 1, "[)")]
NonNegativeInt = Annotated[int, Range("a whole number of at least 0", 0, ends="[)", whole=True)]
PositiveInt = Annotated[int, Range("a whole number of at least 1", 1, ends="[)", whole=True)]


def check(thing: Any, of: str = "", curves: bool = False) -> None:
    """Raise a UserError for a field out of the range in its annotation; None always passes.

    A message says `of` after the field's name, e.g. " of SAM". Where a field may be a curve
    (`curves`), its first number is checked.
    """
    for field in fields(thing):
        hint = evaluated(type(thing), field.name, field.type)
        _check(f"{field.name}{of}", getattr(thing, field.name), hint, curves)


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """The function; its calls raise a UserError for an argument out of its annotation's range."""
    hints = cache(lambda: get_type_hints(function, include_extras=True))
    names = tuple(signature(function).parameters)

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        for name, value in (*zip(names, args, strict=False), *kwargs.items()):
            _check(f"{name} of {function.__name__}", value, hints().get(name), curves=True)
        return function(*args, **kwargs)

    return call


def metadata(hint: Any) -> Iterator[Any]:
    """Everything that an annotation says besides the type: ranges and `Doc`s, also in a union."""
    yield from getattr(hint, "__metadata__", ())
    for part in get_args(hint):
        yield from metadata(part)


def _check(name: str, value: Any, hint: Any, curves: bool = False) -> None:
    if value is None or isinstance(value, Draw):  # which has checked itself
        return
    allowed = {m.says: m for m in metadata(hint) if isinstance(m, Range)} | {
        f"one of {', '.join(get_args(kind))}": get_args(kind)
        for kind in (hint, *get_args(hint))
        if get_origin(kind) is Literal
    }
    whole = any(isinstance(values, Range) and values.whole for values in allowed.values())
    if curves and isinstance(value, Curve) and not whole:
        value = value(0, 1)
    for part in value if isinstance(value, tuple | list) else (value,):
        for says, values in allowed.items():
            number = not isinstance(values, Range) or isinstance(part, float | int)
            if not number or part not in values:
                raise UserError(f"{name} is {says}, not {part if number else repr(part)}")


def evaluated(dataclass: type, field: str, hint: Any) -> Any:
    """The annotation of a dataclass's field.

    It may be text, by `from __future__ import annotations`. `get_type_hints` would give up all
    fields for one name that only type checkers know, and does not find the names of a file that was
    run, as `--algorithm file.py:function` does. Such text stays text here.
    """
    if isinstance(hint, str):
        with suppress(Exception):
            owner: Any = next(base for base in dataclass.__mro__ if field in get_annotations(base))
            return eval(hint, owner.__init__.__globals__)
    return hint
