"""What the command line adds to any algorithm: a perturbation, its ascent, an origin of visits, a server step.

`--algorithm scaffold --perturb lesam --server-optimizer adam` is SCAFFOLD on LESAM's gradients with
Adam on the server, whether a paper tried it or not. What cannot be combined is refused with the
reason.
"""

from fl_lightning.algorithms.modifiers import ascent as ascents
from fl_lightning.algorithms.modifiers import perturb as perturbations
from fl_lightning.algorithms.modifiers import server as servers
from fl_lightning.algorithms.modifiers import start as starts
from fl_lightning.algorithms.modifiers.modifier import Modifier

PARTS = {
    "perturb": perturbations,
    "ascent": ascents,
    "client_start": starts,
    "server_optimizer": servers,
}
"""The options, in the order in which they are added: the module's functions are the choices, the first the default."""

__all__ = ["PARTS", "Modifier"]
