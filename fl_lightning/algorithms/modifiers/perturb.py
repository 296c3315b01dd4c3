"""`--perturb`: where gradients are taken. The module's public functions are the choices."""

from fl_lightning import terms
from fl_lightning.algorithms import shared_options as opt
from fl_lightning.algorithms.modifiers.modifier import Modifier
from fl_lightning.core.constraints import checked


def none() -> Modifier:
    """As the algorithm says."""
    return Modifier()


@checked
def sam(rho: opt.Rho = 0.1) -> Modifier:
    """SAM: along the own gradient."""
    return Modifier(terms.SAM(rho))


@checked
def asam(rho: opt.Rho = 0.7, eta: opt.Eta = 0.2, scaled: opt.Scaled = "weights") -> Modifier:
    """ASAM: along the own gradient, in a ball scaled by the weights."""
    return Modifier(terms.ASAM(rho, eta, opt.SCALED[scaled]))


@checked
def lesam(rho: opt.Rho = 0.1, first_participation: opt.First = "init") -> Modifier:
    """LESAM: back to the model of the client's last visit."""
    return Modifier(terms.LESAM(rho, opt.FIRST[first_participation]))


@checked
def last_round(rho: opt.Rho = 0.1) -> Modifier:
    """LESAM with the last round's model for every client."""
    return Modifier(terms.LastRound(rho))


@checked
def smoo(rho: opt.Rho = 0.1) -> Modifier:
    """FedSMOO's perturbations that agree on a common one."""
    return Modifier(terms.SMOO(rho))


@checked
def toga(
    rho: opt.Rho = 0.1,
    kappa: opt.Kappa = 1.0,
    beta: opt.TrendBeta = 0.8,
    delta: opt.TrendScale = "gradient",
) -> Modifier:
    """FedTOGA's trend in ascent and descent."""
    return Modifier(terms.TOGA(rho, kappa, beta, opt.TREND_SCALES[delta]))


@checked
def sol(
    rho: opt.Rho = 2.0, scope: opt.Scope = "all", per: opt.Per = "column", tau: opt.Tau = 3.0
) -> Modifier:
    """FedSOL's perturbation along the distillation loss."""
    return Modifier(terms.SOL(terms.Distill(tau=tau), rho, per, scope))
