"""Modifiers, which the command line adds to any algorithm.

`--algorithm scaffold --perturb lesam --server-optimizer adam` is SCAFFOLD on LESAM's gradients with
Adam on the server. A combination of two terms with one role is refused.

Imports `terms` and below.
"""

from fl_lightning.algorithms.modifiers import ascent, perturb, server, start
from fl_lightning.algorithms.modifiers.modifier import Modifier

PARTS = {"perturb": perturb, "ascent": ascent, "client_start": start, "server_optimizer": server}
"""The options, in the order of addition; a module's functions are the choices."""

__all__ = ["PARTS", "Modifier"]
