"""`--server-optimizer`: what the server does with the mean update."""

from fl_lightning import terms
from fl_lightning.algorithms.modifiers.modifier import Modifier
from fl_lightning.algorithms.shared_options import at
from fl_lightning.terms import server as steps


def mean() -> Modifier:
    """As the algorithm says; else the mean."""
    return Modifier()


def momentum(lr: float = 1.0, beta: float = 0.9) -> Modifier:
    """Momentum.

    Args:
        lr: The server's learning rate.
        beta: The momentum.
    """
    return Modifier(outer=terms.ServerMomentum(beta), server=at(lr))


def adam(lr: float = 0.01, beta1: float = 0.9, beta2: float = 0.99, tau: float = 1e-3) -> Modifier:
    """Adam without bias correction.

    Args:
        lr: The server's learning rate.
        beta1: Decay of the first moment.
        beta2: Decay of the second moment.
        tau: Added to the root of the second moment, which begins at tau^2.
    """
    return Modifier(outer=terms.AdaptiveServer(beta1, beta2, tau, tau**2), server=at(lr))


def yogi(lr: float = 0.01, beta1: float = 0.9, beta2: float = 0.99, tau: float = 1e-3) -> Modifier:
    """Yogi.

    Args:
        lr: The server's learning rate.
        beta1: Decay of the first moment.
        beta2: Decay of the second moment.
        tau: Added to the root of the second moment, which begins at tau^2.
    """
    return Modifier(
        outer=terms.AdaptiveServer(beta1, beta2, tau, tau**2, steps.yogi), server=at(lr)
    )


def adagrad(lr: float = 0.01, tau: float = 1e-3) -> Modifier:
    """Adagrad.

    Args:
        lr: The server's learning rate.
        tau: Added to the root of the sum, which begins at tau^2.
    """
    return Modifier(outer=terms.AdaptiveServer(0.0, 0.0, tau, tau**2, steps.adagrad), server=at(lr))


def lookahead(beta: float = 0.85, prox: float = 0.001) -> Modifier:
    """FedACG's momentum, along which clients start.

    Args:
        beta: The momentum.
        prox: Strength of the pull to the start, without a half.
    """
    return Modifier(outer=terms.AcceleratedStart(beta, prox))
