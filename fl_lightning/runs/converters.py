"""Conversion of text and YAML values to the types of annotations."""

import re
import types
from collections.abc import Callable, Sequence
from datetime import timedelta
from inspect import Parameter
from os.path import expanduser
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from fl_lightning.core import curves, draws
from fl_lightning.core.curves import Curve
from fl_lightning.core.draws import Draw
from fl_lightning.errors import UserError

_WORDS = {int: "a whole number", float: "a number"}
_CALLS: dict[type, Callable[[str], object]] = {Curve: curves.parse, Draw: draws.parse}
"""What reads the values that are written as calls, such as `cosine(0.1, 0)`."""


def convert(kind: Any, value: Any) -> Any:
    """A value of the type `kind`, from text or a typed value; a UserError if it does not fit."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        if type(None) in arguments and (value is None or str(value).lower() == "none"):
            return None
        for call in {*arguments} & _CALLS.keys():
            if isinstance(value, call):
                return value
            if isinstance(value, str) and "(" in value:
                return _CALLS[call](value)
        return convert(_plain_kinds(kind)[0], value)
    if origin is Literal:
        if value not in arguments:
            raise UserError(f"{value!r} is none of {', '.join(arguments)}")
        return value
    if origin in (Sequence, tuple):
        if origin is tuple and isinstance(value, str):
            value = [part.strip() for part in value.split(",") if value]
        parts = value if isinstance(value, list | tuple) else [value]  # 5 is a list of one
        return tuple(convert(arguments[0], part) for part in parts)
    if kind is bool:
        if str(value).lower() not in ("true", "false"):
            raise UserError(f"{value!r} is neither true nor false")
        return str(value).lower() == "true"
    if kind is int and isinstance(value, float | bool):
        raise UserError(f"{value!r} is not a whole number")
    if kind is Path:
        if not str(value):
            raise UserError("a path is not empty; the working folder is .")
        return Path(expanduser(str(value)))
    try:
        return kind(value)
    except (TypeError, ValueError):
        raise UserError(f"{value!r} is not {_WORDS.get(kind, kind.__name__)}") from None


def with_curves(kind: Any) -> Any:
    """The kind, with curves as further values if it is one of floats."""
    return kind | Curve if float in _plain_kinds(kind) else kind


def _plain_kinds(kind: Any) -> list[Any]:
    """The kinds of a union without None, calls, and text beside paths; of another kind itself."""
    kinds = get_args(kind) if get_origin(kind) in (Union, types.UnionType) else [kind]
    others = (type(None), *_CALLS, *([str] if Path in kinds else []))
    return [a for a in kinds if a not in others]


def is_option(kind: Any) -> bool:
    """Whether values of this kind can be written on a command line."""
    kinds = _plain_kinds(kind)
    if len(kinds) != 1:  # none of a default None without an annotation
        return False
    return kinds[0] in (int, float, bool, str, Path) or get_origin(kinds[0]) in (Literal, tuple)


def metavar(kind: Any) -> str:
    """How `--help` shows a value of this kind."""
    arguments = [a for a in get_args(kind) if a is not type(None)]
    if get_origin(kind) is Literal:
        return "{" + ",".join(arguments) + "}"
    if get_origin(kind) is tuple:
        return f"{metavar(arguments[0])},..."
    if arguments:
        return metavar(arguments[0])
    return {bool: "true|false", float: "X", int: "N"}.get(kind, kind.__name__.upper())


def shown(value: Any) -> str:
    """How `--help` shows a default."""
    if value is Parameter.empty:
        return "needed"
    if value is None or value == ():
        return "none"
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def parse_bytes(size: str) -> int:
    """The bytes of a size such as 512MiB, 4GiB or 2.5GB; a UserError if it is none."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt])(i?)b", size.strip().lower())
    if not found or float(found[1]) <= 0:
        raise UserError(
            f"client_state_memory is a size such as 512MiB, 4GiB or 2.5GB, not {size!r}"
        )
    number, prefix, binary = found.groups()
    return int(float(number) * (1024 if binary else 1000) ** (1 + "kmgt".index(prefix)))


def parse_interval(interval: str | int) -> int | timedelta:
    """A number of rounds, or a time such as 30s, 5min or 2h; a UserError if it is neither."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|min|h)|0*[1-9]\d*", str(interval).strip())
    if not found or (found[1] and float(found[1]) <= 0):
        raise UserError(
            "checkpoint_every is a number of rounds or a time such as 30s, 5min or 2h, "
            f"not {interval!r}"
        )
    if not found[2]:
        return int(interval)
    return timedelta(seconds=float(found[1]) * {"s": 1, "min": 60, "h": 3600}[found[2]])
