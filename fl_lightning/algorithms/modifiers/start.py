"""`--client-start`: where clients start."""

from fl_lightning import terms
from fl_lightning.algorithms.modifiers.modifier import Modifier
from fl_lightning.algorithms.shared_options import FIRST, First


def received() -> Modifier:
    """At the received model, or as the algorithm says."""
    return Modifier()


def relaxed(beta: float = 0.1, first_participation: First = "init") -> Modifier:
    """Away from the client's own last model: relaxed initialisation.

    Args:
        beta: How far, in differences between the received and the own last model.
        first_participation: At a first visit w^0 stands for the own last model, or there is no
            shift.
    """
    return Modifier(outer=terms.RelaxedInitialization(beta, FIRST[first_participation]))
