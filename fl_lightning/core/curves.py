"""Curves: coefficients that change over the rounds, such as `cosine(0.8, 0.1)`."""

import re
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, fields, is_dataclass
from math import cos, inf, isfinite, pi
from typing import Any, NoReturn, TypeVar

from torch import Tensor

from fl_lightning.errors import UserError

R = TypeVar("R")

OfRound = Callable[[int, int], float]
"""A number in each round: `number(round, rounds)`, the rounds counted from 0. Curves are such."""

Place = tuple[int | str, *tuple[str, ...]]
"""Where a curve stands: its term's index or its part's name, and the fields that lead to it."""

Coefficients = Mapping[Place, float | Tensor]
"""The numbers of an algorithm's curves in a round, by place."""


@dataclass(frozen=True, repr=False)
class Curve:
    """A number that changes monotonically over the rounds. `linear` and others make one.

    Coefficients and learning rates can be curves: to calculate with one is an error, but to divide
    a number by it.

    Attributes:
        kind: The name of the function that made it.
        numbers: What describes it, in the order of the text.
        over: A number that it divides; None for the curve itself.

    Example:
        >>> linear(0.0, 1.0, until=4)(3, 100)
        0.75
        >>> parse("exponential(0.8,0.5)"), parse("exponential(0.8,0.5)")(2, 100)
        (exponential(0.8, 0.5), 0.2)
        >>> (1 / linear(10.0, 20.0))(1, 2)
        0.06666666666666667
    """

    kind: str
    numbers: tuple[float, ...]
    over: float | None = None

    def __call__(self, round: int, rounds: int) -> float:
        """The number in a round, from 0; infinite if it is too large for a float."""
        number = self._number(round, rounds)
        if self.over is None:
            return number
        return self.over / number if number else inf

    def _number(self, round: int, rounds: int) -> float:
        begin, end, *until = self.numbers
        if self.kind == "exponential":
            try:
                return begin * end**round
            except OverflowError:
                return inf
        part = min(1.0, round / (until[0] if until else rounds))
        if self.kind == "cosine":
            part = (1 - cos(pi * part)) / 2
        way = end - begin
        return begin + way * part if part < 0.5 else end - way * (1 - part)  # exact at both ends

    @property
    def has_horizon(self) -> bool:
        """Whether it depends on the number of rounds of the run."""
        return self.kind != "exponential" and len(self.numbers) == 2

    def __repr__(self) -> str:
        text = f"{self.kind}({', '.join(repr(x).removesuffix('.0') for x in self.numbers)})"
        return text if self.over is None else f"{self.over:g} / {text}"

    def __rtruediv__(self, number: float) -> "Curve":
        return Curve(self.kind, self.numbers, number) if self.over is None else self._refuse()

    def _refuse(self, *_: object) -> NoReturn:
        raise UserError(
            f"{self} is a curve, with which only a term can calculate, in a field of its "
            "dataclass: pass it on to a term as it is, or give a number"
        )

    __float__ = __neg__ = __abs__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _refuse
    __truediv__ = __pow__ = __rpow__ = _refuse
    __lt__ = __le__ = __gt__ = __ge__ = _refuse


# Typed as the numbers that they stand for, so that type checkers take SAM(rho=linear(0.01, 0.1)).


def linear(begin: float, end: float, until: float | None = None) -> Any:
    """A straight line from `begin`, in the first round, to `end`.

    Args:
        begin: The number in the first round.
        end: The number after `until` rounds and from then on.
        until: A number of rounds; None is all of the run, so that its last round is one step short
            of `end`.
    """
    return _curve("linear", begin, end, until)


def cosine(begin: float, end: float, until: float | None = None) -> Any:
    """Half a wave of the cosine between the numbers of `linear`: flat at both ends.

    `cosine(lr, 0)` is `torch.optim.lr_scheduler.CosineAnnealingLR` with T_max = rounds.
    """
    return _curve("cosine", begin, end, until)


def exponential(begin: float, factor: float) -> Any:
    """`begin factor^t` in round t, from 0."""
    if not 0 < factor < inf:
        raise UserError(f"the factor of exponential is a positive number, not {factor}")
    return _curve("exponential", begin, factor)


@dataclass(frozen=True)
class LinearRate:
    """A factor on the learning rate of a visit that goes from `begin` to `end`, as `linear`."""

    begin: float
    end: float

    def __call__(self, step: int, steps: int) -> float:
        """The factor in a step, from 0."""
        return Curve("linear", (self.begin, self.end))(step, steps)


def as_curve(number: Any, factor: float = 1.0) -> Curve:
    """A curve as it is; of a number `exponential(number, factor)`."""
    return number if isinstance(number, Curve) else exponential(number, factor)


MAKERS = {make.__name__: make for make in (linear, cosine, exponential)}
"""What makes a curve, by the word that a text begins with."""


def parse(text: str) -> Curve:
    """The curve that a text such as `cosine(0.8, 0.1)` describes.

    Raises:
        UserError: If it describes none.
    """
    return call_in(
        text,
        MAKERS,
        f"{text!r} is no curve: write linear(0.8, 0.1), cosine(0.8, 0.1), either with a third "
        "number, the rounds that it takes, or exponential(0.8, 0.99)",
    )


def call_in(text: str, makers: Mapping[str, Callable[..., R]], otherwise: str) -> R:
    """What the call in a text, such as `cosine(0.8, 0.1)`, makes; its arguments are numbers.

    Raises:
        UserError: With the sentence `otherwise` if it is no call of one of these functions.
    """
    found = re.fullmatch(r"\s*(\w+)\s*\((.*)\)\s*", text)
    name, numbers = found.groups() if found else ("", "")
    try:
        return makers[name](*map(float, numbers.split(",")))
    except UserError:
        raise
    except (KeyError, TypeError, ValueError):
        raise UserError(otherwise) from None


def read(value: Any) -> Any:
    """The curve that a text with parentheses describes; any other value as it is."""
    return parse(value) if isinstance(value, str) and "(" in value else value


def _curve(kind: str, *numbers: float | None) -> Curve:
    given = tuple(float(x) for x in numbers if x is not None)
    curve = Curve(kind, given)
    if not all(map(isfinite, given)):
        raise UserError(f"{curve} is no curve: its numbers are finite")
    if kind != "exponential" and len(given) == 3 and given[2] <= 0:
        raise UserError(f"{curve} is no curve: the third number is one of rounds, above 0")
    return curve


def rate_in(curve: OfRound, name: str, round: int, rounds: int) -> float:
    """The learning rate of a round, which the algorithm's `name` gives.

    Raises:
        UserError: If it is no learning rate.
    """
    lr = float(curve(round, rounds))
    if not 0 <= lr < inf:
        raise UserError(
            f"{name} of the algorithm gives {lr:g} in round {round + 1:,}: return a number of at "
            "least 0"
        )
    return lr


# --- curves in the fields of terms


def curves_in(term: Any) -> dict[tuple[str, ...], Curve]:
    """The curves in the fields of a dataclass, and of those that it holds, by their paths."""
    found: dict[tuple[str, ...], Curve] = {}
    for name in [field.name for field in fields(term)] if is_dataclass(term) else []:
        value = getattr(term, name)
        if isinstance(value, Curve):
            found[name,] = value
        elif not isinstance(value, type):
            found |= {(name, *path): curve for path, curve in curves_in(value).items()}
    return found


def with_number(term: Any, path: tuple[str, ...], number: float | Tensor) -> Any:
    """A copy of a dataclass with a number in the place of a curve, which it checks as ever.

    A tensor, whose value nobody may ask for, is not checked.
    """
    name, *inner = path
    value = with_number(getattr(term, name), tuple(inner), number) if inner else number
    changed = copy(term)
    object.__setattr__(changed, name, value)
    if not isinstance(number, Tensor) and hasattr(changed, "__post_init__"):
        changed.__post_init__()
    return changed
