"""Methods whose local steps are one program: they differ in numbers alone, which become tensors."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import lru_cache
from math import isfinite
from typing import Any, get_args

import torch
from torch import Tensor, nn

from fl_lightning.core.algorithm import Algorithm
from fl_lightning.core.constraints import evaluated
from fl_lightning.core.curves import Coefficients, Curve, Place
from fl_lightning.core.network import digest
from fl_lightning.errors import UserError

Numbers = dict[Place, float | Curve]
"""The coefficients of a method by place."""


def numbers_of(algorithm: Algorithm) -> Numbers:
    """The terms' coefficients that are numbers or curves, by place."""
    return {place: value for place, _, value in _leaves(algorithm) if _is_number(value)}


@lru_cache(64)
def program_of(algorithm: Algorithm) -> Mapping[str, str]:
    """What methods of one program share, by name.

    They are the terms, all their fields but numbers, and the local optimizer but for its rate.
    """
    optimizer = algorithm.local([nn.Parameter(torch.zeros(1))])
    shared = {f"term {i + 1}": _class_text(type(term)) for i, term in enumerate(algorithm.terms)}
    shared["the local optimizer"] = _class_text(type(optimizer))
    for name in vars(optimizer).keys() - {"param_groups", "state", "defaults"}:
        shared[f"{name} of the local optimizer"] = _text(vars(optimizer)[name])
    for _, name, value in _leaves(algorithm):
        shared[name] = "a number" if _is_number(value) else _text(value)
    for k, group in enumerate(optimizer.param_groups):
        for name in group.keys() - {"params", "lr", "initial_lr"}:
            shared[f"{name} of the local optimizer's group {k + 1}"] = repr(group[name])
    return shared


def differing_numbers(algorithms: Sequence[Algorithm]) -> list[Place]:
    """Where methods of one program have curves or different numbers.

    Raises:
        UserError: If they are not of one program; names what differs.
    """
    first, *others = map(program_of, algorithms)
    for other in others:
        for name in sorted(first.keys() | other.keys()):
            here, there = first.get(name, "none"), other.get(name, "none")
            if here != there:
                raise UserError(f"{name} is {here} in one run and {there} in another")
    every = [*map(numbers_of, algorithms)]
    return [
        place
        for place, value in every[0].items()
        if any(isinstance(of[place], Curve) or of[place] != value for of in every)
    ]


def numbers_at(
    algorithm: Algorithm, places: Sequence[Place], coefficients: Coefficients
) -> Coefficients:
    """The numbers at these places in a round, of which `coefficients` are the curves'."""
    numbers: dict[Place, Any] = {**numbers_of(algorithm), **coefficients}
    return {place: numbers[place] for place in places}


def _leaves(algorithm: Algorithm) -> list[tuple[Place, str, Any]]:
    """The fields of all terms, and of the dataclasses in them: place, name and value.

    An attribute that is no field is there as text: it decides the program.
    """
    return [
        ((i, *path), f"{'.'.join((type(term).__name__, *path))} of term {i + 1}", value)
        for i, term in enumerate(algorithm.terms)
        for path, value in _fields(term)
    ]


def _fields(thing: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    declared = fields(thing) if is_dataclass(thing) else ()
    own = getattr(thing, "__dict__", {})
    for name in own.keys() - {field.name for field in declared}:
        yield (name,), _text(own[name])  # it becomes no tensor
    for field in declared:
        value = getattr(thing, field.name)
        if is_dataclass(value) and not isinstance(value, type | Curve):
            yield (field.name,), _class_text(type(value))
            yield from (((field.name, *path), inner) for path, inner in _fields(value))
            continue
        if isinstance(value, int) and _takes_floats(evaluated(type(thing), field.name, field.type)):
            value = float(value)
        yield (field.name,), value


def _class_text(of: type) -> str:
    """Its full name; with its place if a function made it, whose variables it may use."""
    name = f"{of.__module__}.{of.__qualname__}"
    return f"{name} at {id(of):#x}" if "<locals>" in name else name


def _text(value: Any) -> str:
    return f"a tensor of digest {digest(value)}" if isinstance(value, Tensor) else repr(value)


def _takes_floats(hint: Any) -> bool:
    return hint is float or any(map(_takes_floats, get_args(hint)))


def _is_number(value: Any) -> bool:
    return isinstance(value, Curve) or (isinstance(value, float) and isfinite(value))
