"""`--client-start`: where clients start."""

from fl_lightning import terms
from fl_lightning.algorithms.modifiers.modifier import Modifier
from fl_lightning.algorithms.shared_options import FIRST, First, StartBeta
from fl_lightning.core.constraints import checked


def received() -> Modifier:
    """At the received model, or as the algorithm says."""
    return Modifier()


@checked
def relaxed(beta: StartBeta = 0.1, first_participation: First = "init") -> Modifier:
    """Away from the client's own last model: relaxed initialization."""
    return Modifier(outer=terms.RelaxedInitialization(beta, FIRST[first_participation]))
