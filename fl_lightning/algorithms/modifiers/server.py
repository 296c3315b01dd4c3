"""`--server-optimizer`: what the server does with the mean update."""

from fl_lightning import terms
from fl_lightning.algorithms.modifiers.modifier import Modifier
from fl_lightning.algorithms.shared_options import (
    Adaptivity,
    Beta1,
    Beta2,
    Momentum,
    Prox,
    ServerLR,
    at,
)
from fl_lightning.core.constraints import checked
from fl_lightning.terms import server as moments


def mean() -> Modifier:
    """As the algorithm says; else the mean."""
    return Modifier()


@checked
def momentum(lr: ServerLR = 1.0, beta: Momentum = 0.9) -> Modifier:
    """Momentum."""
    return Modifier(outer=terms.ServerMomentum(beta), server=at(lr))


@checked
def adam(
    lr: ServerLR = 0.01, beta1: Beta1 = 0.9, beta2: Beta2 = 0.99, tau: Adaptivity = 1e-3
) -> Modifier:
    """Adam without bias correction."""
    return Modifier(outer=terms.AdaptiveServer(beta1, beta2, tau, tau**2), server=at(lr))


@checked
def yogi(
    lr: ServerLR = 0.01, beta1: Beta1 = 0.9, beta2: Beta2 = 0.99, tau: Adaptivity = 1e-3
) -> Modifier:
    """Yogi."""
    term = terms.AdaptiveServer(beta1, beta2, tau, tau**2, moments.yogi)
    return Modifier(outer=term, server=at(lr))


@checked
def adagrad(lr: ServerLR = 0.01, tau: Adaptivity = 1e-3) -> Modifier:
    """Adagrad."""
    term = terms.AdaptiveServer(0.0, 0.0, tau, tau**2, moments.adagrad)
    return Modifier(outer=term, server=at(lr))


@checked
def lookahead(beta: Momentum = 0.85, prox: Prox = 0.001) -> Modifier:
    """FedACG's momentum, along which clients start."""
    return Modifier(outer=terms.AcceleratedStart(beta, prox))
