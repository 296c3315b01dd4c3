"""Modifiers, which the command line adds to any algorithm.

`--algorithm scaffold --perturb lesam --server-optimizer adam` is SCAFFOLD on LESAM's gradients with
Adam on the server. A combination of two terms with one role is refused.

Imports `terms` and below.
"""

from collections.abc import Mapping
from typing import Any

from fl_lightning.algorithms.modifiers import ascent, perturb, server, start
from fl_lightning.algorithms.modifiers.modifier import Modifier
from fl_lightning.algorithms.registry import functions

PARTS = {"perturb": perturb, "ascent": ascent, "client_start": start, "server_optimizer": server}
"""The options, in the order of addition; a module's functions are the choices."""

UNCHANGED = {part: next(iter(functions(module))) for part, module in PARTS.items()}
"""The choice that changes nothing, for each option."""


def method_name(options: Mapping[str, Any]) -> str:
    """The algorithm and its modifiers, such as `scaffold+lesam`."""
    added = [options.get(part) for part, none in UNCHANGED.items() if options.get(part) != none]
    return "+".join([options["algorithm"], *(name for name in added if name not in (None, "none"))])


__all__ = ["PARTS", "Modifier", "method_name"]
