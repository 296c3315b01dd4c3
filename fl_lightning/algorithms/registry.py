"""The functions that the command line offers by name."""

import re
from collections.abc import Callable
from inspect import isfunction
from types import ModuleType
from typing import Any

from fl_lightning import algorithms
from fl_lightning.core.algorithm import Algorithm
from fl_lightning.core.docstrings import summary

FAMILIES: tuple[ModuleType, ...] = (
    algorithms.averaging,
    algorithms.server,
    algorithms.drift,
    algorithms.sharpness,
    algorithms.global_sharpness,
    algorithms.flatness,
    algorithms.adaptive,
    algorithms.matrix,
    algorithms.representation,
    algorithms.label_skew,
    algorithms.fairness,
    algorithms.robust,
    algorithms.asynchronous,
    algorithms.personal,
    algorithms.lora,
    algorithms.privacy,
)
"""The modules of algorithms, in the order in which they are listed."""


def functions(module: ModuleType) -> dict[str, Callable[..., Any]]:
    """The public functions of a module, in its order."""
    public = {name: f for name, f in vars(module).items() if isfunction(f) and name[0] != "_"}
    return {name: f for name, f in public.items() if f.__module__ == module.__name__}


ALGORITHMS: dict[str, Callable[..., Algorithm]] = {
    name: make for family in FAMILIES for name, make in functions(family).items()
}
"""Every algorithm, by name."""


def paper_name(label: str) -> str:
    """A label, "fedtoga, lr 0.1", with the method's name in its paper: "FedTOGA, lr 0.1".

    A method's summary begins with this name. Other labels stay as they are.
    """
    name, comma, rest = label.partition(",")
    if name not in ALGORITHMS:
        return label
    return re.split(r"[:,]", summary(ALGORITHMS[name]))[0] + comma + rest
