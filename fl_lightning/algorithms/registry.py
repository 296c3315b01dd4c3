"""The functions that the command line offers by name, and what their docstrings say."""

import re
from collections.abc import Callable
from functools import cache
from inspect import getdoc, isfunction
from types import ModuleType
from typing import Any, get_type_hints

from typing_extensions import Doc

from fl_lightning import algorithms
from fl_lightning.core.algorithm import Algorithm
from fl_lightning.core.constraints import metadata

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

_SECTION = re.compile(r"^([A-Z]\w*(?: \w+)?):\n((?: {4}.*\n?|\n)+)", re.MULTILINE)
"""A section of a docstring in Google's style."""

_ENTRY = re.compile(r"^ {4}(\w+)(?: \(.*?\))?:(.*\n?(?: {5}.*\n?|\n)*)", re.MULTILINE)
"""A parameter in the section Args or Attributes."""


def summary(documented: Callable[..., Any]) -> str:
    """The first line of a docstring."""
    return (getdoc(documented) or "").partition("\n")[0]


def paper_name(label: str) -> str:
    """A label, "fedtoga, lr 0.1", with the method's name in its paper: "FedTOGA, lr 0.1".

    A method's summary begins with this name. Other labels stay as they are.
    """
    name, comma, rest = label.partition(",")
    if name not in ALGORITHMS:
        return label
    return re.split(r"[:,]", summary(ALGORITHMS[name]))[0] + comma + rest


def sections(documented: Callable[..., Any]) -> dict[str, str]:
    """The sections of a docstring by title; what is in none of them is "Description"."""
    doc = getdoc(documented) or ""
    return {"Description": _SECTION.sub("", doc).strip(), **dict(_SECTION.findall(doc))}


@cache
def parameter_help(documented: Callable[..., Any]) -> dict[str, str]:
    """The help text of each parameter of a function, or of each field of a dataclass.

    First the `Doc` of its annotation, which several functions share, then what the docstring's
    Args or Attributes add.
    """
    text = sections(documented)
    entries = _ENTRY.findall(text.get("Args", "") + text.get("Attributes", ""))
    described = {name: " ".join(help.split()) for name, help in entries}
    hints = get_type_hints(documented, include_extras=True)
    shared = {
        name: next((m.documentation for m in metadata(hint) if isinstance(m, Doc)), "")
        for name, hint in hints.items()
    }
    names = dict.fromkeys(name for name in (*shared, *described) if name != "return")
    return {name: f"{shared.get(name, '')} {described.get(name, '')}".strip() for name in names}
