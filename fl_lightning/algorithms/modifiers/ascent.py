"""`--ascent`: FedTOGA's neighbourhood perturbation, for any perturbation that ascends along a gradient."""

from fl_lightning import terms
from fl_lightning.algorithms.modifiers.modifier import Modifier


def own() -> Modifier:
    """As the perturbation says."""
    return Modifier()


def neighbour(carry: bool = False) -> Modifier:
    """The previous perturbed gradient instead of a new one: one pass a step (N-P).

    Args:
        carry: Keep it from one visit of a client to the next.
    """
    return Modifier(around=lambda term: terms.Neighbour(term, carry=carry))


def fusion(carry: bool = False) -> Modifier:
    """The previous perturbed gradient added to the new one.

    Args:
        carry: Keep it from one visit of a client to the next.
    """
    return Modifier(around=lambda term: terms.Neighbour(term, fusion=True, carry=carry))
