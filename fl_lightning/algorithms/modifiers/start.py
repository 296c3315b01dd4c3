"""`--client-start`: where clients start."""

from fl_lightning import terms
from fl_lightning.algorithms import shared_options as opt
from fl_lightning.algorithms.modifiers.modifier import Modifier
from fl_lightning.core.constraints import checked


def received() -> Modifier:
    """At the received model, or as the algorithm says."""
    return Modifier()


@checked
def relaxed(beta: opt.StartBeta = 0.1, first_participation: opt.First = "init") -> Modifier:
    """Away from the client's own last model: relaxed initialization.

    Duals and proximal terms still count from the received model w^t; FL-Simulator's count from the
    start.
    """
    return Modifier(outer=terms.RelaxedInitialization(beta, opt.FIRST[first_participation]))
