"""`--server-optimizer`: what the server does with the mean update."""

from fl_lightning import terms
from fl_lightning.algorithms import shared_options as opt
from fl_lightning.algorithms.modifiers.modifier import Modifier
from fl_lightning.algorithms.shared_options import sgd
from fl_lightning.core.constraints import checked


def mean() -> Modifier:
    """As the algorithm says; else the mean."""
    return Modifier()


@checked
def momentum(beta: opt.Momentum = 0.9) -> Modifier:
    """Momentum."""
    return Modifier(outer=terms.ServerMomentum(beta))


@checked
def adam(
    beta1: opt.Beta1 = 0.9,
    beta2: opt.Beta2 = 0.99,
    tau: opt.Adaptivity = 1e-3,
) -> Modifier:
    """Adam without bias correction."""
    return Modifier(outer=terms.AdaptiveServer(beta1, beta2, tau), server=sgd(0.01))


@checked
def yogi(
    beta1: opt.Beta1 = 0.9,
    beta2: opt.Beta2 = 0.99,
    tau: opt.Adaptivity = 1e-3,
) -> Modifier:
    """Yogi."""
    term = terms.AdaptiveServer(beta1, beta2, tau, kind="yogi")
    return Modifier(outer=term, server=sgd(0.01))


@checked
def adagrad(tau: opt.Adaptivity = 1e-3) -> Modifier:
    """Adagrad."""
    term = terms.AdaptiveServer(0.0, 0.0, tau, kind="adagrad")
    return Modifier(outer=term, server=sgd(0.01))


@checked
def lookahead(beta: opt.Momentum = 0.85, prox: opt.Prox = 0.001) -> Modifier:
    """FedACG's momentum, along which clients start."""
    return Modifier(outer=terms.AcceleratedStart(beta, prox))
