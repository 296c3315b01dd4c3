"""The functions that the command line offers by name, and the help text of their parameters."""

import re
from collections.abc import Callable
from functools import cache
from inspect import isfunction
from types import ModuleType
from typing import Any, get_type_hints

from docstring_parser import parse
from typing_extensions import Doc

from fl_lightning.algorithms import averaging, drift, personal, representation, server, sharpness
from fl_lightning.core.algorithm import Algorithm
from fl_lightning.core.constraints import metadata

FAMILIES: tuple[ModuleType, ...] = averaging, server, drift, sharpness, representation, personal
"""The modules of algorithms, in the order in which they are listed."""


def functions(module: ModuleType) -> dict[str, Callable[..., Any]]:
    """The public functions of a module, in its order."""
    public = {name: f for name, f in vars(module).items() if isfunction(f) and name[0] != "_"}
    return {name: f for name, f in public.items() if f.__module__ == module.__name__}


ALGORITHMS: dict[str, Callable[..., Algorithm]] = {
    name: make for family in FAMILIES for name, make in functions(family).items()
}
"""Every algorithm, by name."""

_NOT_PARAMETERS = re.compile(r"^ *(References|Released code):", re.MULTILINE)


@cache
def parameter_help(documented: Callable[..., Any]) -> dict[str, str]:
    """The help text of each parameter of a function, or of each field of a dataclass.

    First the `Doc` of its annotation, which several functions share, then what the docstring's
    Args or Attributes add.
    """
    text = _NOT_PARAMETERS.split(documented.__doc__ or "", maxsplit=1)[0]
    described = {p.arg_name: " ".join((p.description or "").split()) for p in parse(text).params}
    hints = get_type_hints(documented, include_extras=True)
    shared = {
        name: next((m.documentation for m in metadata(hint) if isinstance(m, Doc)), "")
        for name, hint in hints.items()
    }
    names = dict.fromkeys(name for name in (*shared, *described) if name != "return")
    return {name: f"{shared.get(name, '')} {described.get(name, '')}".strip() for name in names}
