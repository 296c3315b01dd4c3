"""Griffe extension: docstring sections of this package that mkdocstrings does not know."""

import re
from typing import Any

import griffe


class Sections(griffe.Extension):
    """Shows `Example:` as examples and `References:` as a list."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of a module, class or function."""
        if obj.docstring:
            text = re.sub(r"^Example::?$", "Examples:", obj.docstring.value, flags=re.M)
            obj.docstring.value = re.sub(
                r"(?<=^References:\n)(    .*\n?)+", listed, text, flags=re.M
            )


def listed(lines: re.Match[str]) -> str:
    """The lines as a list; further lines of an entry are indented more."""
    return re.sub(r"^    (?=\S)", "    - ", lines[0], flags=re.M)
