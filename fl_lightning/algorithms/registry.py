"""The functions that the command line offers by name."""

from collections.abc import Callable
from inspect import isfunction
from types import ModuleType
from typing import Any

from fl_lightning.algorithms import averaging, drift, personal, representation, server, sharpness
from fl_lightning.core.algorithm import Algorithm

FAMILIES: tuple[ModuleType, ...] = averaging, server, drift, sharpness, representation, personal
"""The modules of algorithms, in the order in which they are listed."""


def functions(module: ModuleType) -> dict[str, Callable[..., Any]]:
    """The public functions of a module, in its order."""
    own = {name: f for name, f in vars(module).items() if isfunction(f) and name[0] != "_"}
    return {name: f for name, f in own.items() if f.__module__ == module.__name__}


ALGORITHMS: dict[str, Callable[..., Algorithm]] = {
    name: make for family in FAMILIES for name, make in functions(family).items()
}
"""Every algorithm, by name."""
