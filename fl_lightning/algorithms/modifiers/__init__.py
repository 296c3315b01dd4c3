"""Modifiers that the command line adds to any algorithm: a perturbation, its ascent, a start, a server step.

`--algorithm scaffold --perturb lesam --server-optimizer adam` is SCAFFOLD on LESAM's gradients with
Adam on the server. A combination of two terms with one role is refused.
"""

from fl_lightning.algorithms.modifiers import ascent, perturb, server, start
from fl_lightning.algorithms.modifiers.modifier import Modifier

PARTS = {
    "perturb": perturb,
    "ascent": ascent,
    "client_start": start,
    "server_optimizer": server,
}
"""The options, in the order in which they are added: the module's functions are the choices, the first the default."""

__all__ = ["PARTS", "Modifier"]
