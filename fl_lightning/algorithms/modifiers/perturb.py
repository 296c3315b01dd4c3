"""`--perturb`: where gradients are taken. The module's public functions are the choices."""

from fl_lightning import terms
from fl_lightning.algorithms.modifiers.modifier import Modifier
from fl_lightning.algorithms.shared_options import (
    DELTA,
    FIRST,
    PER,
    SCALED,
    SCOPES,
    TREND_SCALES,
    Eta,
    First,
    Kappa,
    Per,
    Rho,
    Scaled,
    Scope,
    Tau,
    TrendBeta,
    TrendScale,
)
from fl_lightning.core.constraints import checked


def none() -> Modifier:
    """As the algorithm says."""
    return Modifier()


@checked
def sam(rho: Rho = 0.1) -> Modifier:
    """SAM: along the own gradient."""
    return Modifier(terms.SAM(rho))


@checked
def asam(rho: Rho = 0.7, eta: Eta = 0.2, scaled: Scaled = "weights") -> Modifier:
    """ASAM: along the own gradient, in a ball scaled by the weights."""
    return Modifier(terms.ASAM(rho, eta, SCALED[scaled]))


@checked
def lesam(rho: Rho = 0.1, first_participation: First = "init") -> Modifier:
    """LESAM: back to the model of the client's last visit."""
    return Modifier(terms.LESAM(rho, FIRST[first_participation]))


@checked
def last_round(rho: Rho = 0.1) -> Modifier:
    """LESAM with the last round's model for every client."""
    return Modifier(terms.LastRound(rho))


@checked
def smoo(rho: Rho = 0.1) -> Modifier:
    """FedSMOO's perturbations that agree on a common one."""
    return Modifier(terms.SMOO(rho))


@checked
def toga(
    rho: Rho = 0.1, kappa: Kappa = 1.0, beta: TrendBeta = 0.8, delta: TrendScale = DELTA
) -> Modifier:
    """FedTOGA's trend in ascent and descent."""
    return Modifier(terms.TOGA(rho, kappa, beta, TREND_SCALES[delta]))


@checked
def sol(rho: Rho = 2.0, scope: Scope = "all", per: Per = "tensor", tau: Tau = 3.0) -> Modifier:
    """FedSOL's perturbation along the distillation loss."""
    return Modifier(terms.SOL(terms.Distill(tau=tau), rho, PER[per], SCOPES[scope]))
