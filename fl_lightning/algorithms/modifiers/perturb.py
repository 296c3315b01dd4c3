"""`--perturb`: where gradients are taken. The module's public functions are the choices."""

from typing import Literal

from fl_lightning import terms
from fl_lightning.algorithms.modifiers.modifier import Modifier
from fl_lightning.algorithms.representation import PER, SCOPES, Per, Scope
from fl_lightning.algorithms.shared_options import FIRST, First
from fl_lightning.algorithms.sharpness import SCALED, SCALES, Scaled


def none() -> Modifier:
    """As the algorithm says."""
    return Modifier()


def sam(rho: float = 0.1) -> Modifier:
    """SAM: along the own gradient.

    Args:
        rho: Radius of the perturbation.
    """
    return Modifier(terms.SAM(rho))


def asam(rho: float = 0.7, eta: float = 0.2, scaled: Scaled = "weights") -> Modifier:
    """ASAM: along the own gradient, in a ball scaled by the weights.

    Args:
        rho: Radius of the perturbation.
        eta: Added to the scale.
        scaled: Scale by the parameters named weight only, or by all.
    """
    return Modifier(terms.ASAM(rho, eta, SCALED[scaled]))


def lesam(rho: float = 0.1, first_participation: First = "init") -> Modifier:
    """LESAM: back to the model of the client's last visit.

    Args:
        rho: Radius of the perturbation.
        first_participation: At a first visit refer to w^0, or do not perturb.
    """
    return Modifier(terms.LESAM(rho, FIRST[first_participation]))


def last_round(rho: float = 0.1) -> Modifier:
    """LESAM with the last round's model for everybody.

    Args:
        rho: Radius of the perturbation.
    """
    return Modifier(terms.LastRound(rho))


def smoo(rho: float = 0.1) -> Modifier:
    """FedSMOO's perturbations that agree on a common one.

    Args:
        rho: Radius of the perturbation.
    """
    return Modifier(terms.SMOO(rho))


def toga(
    rho: float = 0.1,
    kappa: float = 1.0,
    beta: float = 0.8,
    delta: Literal["steps", "epochs", "gradient"] = "steps",
) -> Modifier:
    """FedTOGA's trend in ascent and descent.

    Args:
        rho: Radius of the perturbation.
        kappa: Weight of Delta in the ascent direction.
        beta: Weight of Delta in the descent direction.
        delta: What the mean movement is divided by.
    """
    return Modifier(terms.TOGA(rho, kappa, beta, SCALES[delta]))


def sol(rho: float = 2.0, scope: Scope = "all", per: Per = "column", tau: float = 3.0) -> Modifier:
    """FedSOL's perturbation along the distillation loss.

    Args:
        rho: Radius of the perturbation.
        scope: What is perturbed.
        per: Strength over the norm of each column or of the whole parameter.
        tau: Temperature of the distillation.
    """
    return Modifier(terms.SOL(terms.Distill(tau=tau), rho, PER[per], SCOPES[scope]))
