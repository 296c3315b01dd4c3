"""What docstrings say, in Google's style."""

import re
from collections.abc import Callable
from functools import cache
from inspect import getdoc
from typing import Any, get_type_hints

from typing_extensions import Doc

from fl_lightning.core.constraints import metadata

_SECTION = re.compile(r"^([A-Z]\w*(?: \w+)?):\n((?: {4}.*\n?|\n)+)", re.MULTILINE)
"""A section of a docstring in Google's style."""

_ENTRY = re.compile(r"^ {4}(\w+)(?: \(.*?\))?:(.*\n?(?: {5}.*\n?|\n)*)", re.MULTILINE)
"""A parameter in the section Args or Attributes."""


def summary(documented: Callable[..., Any]) -> str:
    """The first line of a docstring."""
    return (getdoc(documented) or "").partition("\n")[0]


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
