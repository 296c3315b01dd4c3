"""`--ascent`: FedTOGA's neighborhood perturbation, for perturbations of two gradients a step."""

from fl_lightning import terms
from fl_lightning.algorithms import shared_options as opt
from fl_lightning.algorithms.modifiers.modifier import Modifier


def own() -> Modifier:
    """As the perturbation says."""
    return Modifier()


def neighbor(carry: opt.Carry = False) -> Modifier:
    """The previous perturbed gradient instead of a new one: one pass a step (N-P)."""
    return Modifier(around=lambda term: terms.Neighbor(term, carry=carry))


def fusion(carry: opt.Carry = False) -> Modifier:
    """The previous perturbed gradient added to the new one."""
    return Modifier(around=lambda term: terms.Neighbor(term, fusion=True, carry=carry))
