"""Server optimizers and starts."""

from typing import Literal

from fl_lightning import terms
from fl_lightning.algorithms.shared_options import FIRST, WEIGHTS, First, Weighting, at
from fl_lightning.core.algorithm import Algorithm
from fl_lightning.terms import server


def fedavgm(
    beta: float = 0.9, server_lr: float = 1.0, weighting: Weighting = "by_size"
) -> Algorithm:
    """FedAvgM: momentum on the server (Hsu et al., arXiv 1909.06335).

    Args:
        beta: The momentum.
        server_lr: The server's learning rate.
        weighting: Weigh clients by their samples, or all alike.
    """
    return Algorithm(terms.ServerMomentum(beta), server=at(server_lr), weight=WEIGHTS[weighting])


def fedadam(
    server_lr: float = 0.01,
    beta1: float = 0.9,
    beta2: float = 0.99,
    tau: float = 1e-3,
    v0: float | None = None,
    weighting: Weighting = "by_size",
) -> Algorithm:
    """FedAdam: Adam on the server, without bias correction (Reddi et al., ICLR 2021).

    Args:
        server_lr: The server's learning rate (0.01 in FedTOGA's tables, 0.1 in FL-Simulator).
        beta1: Decay of the first moment.
        beta2: Decay of the second moment.
        tau: Adaptivity: added to the root of the second moment.
        v0: Where the second moment begins; None is tau^2, as the paper has it (FL-Simulator: 0).
        weighting: Weigh clients by their samples, or all alike.
    """
    moments = terms.AdaptiveServer(beta1, beta2, tau, tau**2 if v0 is None else v0)
    return Algorithm(moments, server=at(server_lr), weight=WEIGHTS[weighting])


def fedyogi(
    server_lr: float = 0.01,
    beta1: float = 0.9,
    beta2: float = 0.99,
    tau: float = 1e-3,
    v0: float | None = None,
    weighting: Weighting = "by_size",
) -> Algorithm:
    """FedYogi: a second moment that moves slowly (Reddi et al., ICLR 2021).

    Args:
        server_lr: The server's learning rate.
        beta1: Decay of the first moment.
        beta2: Decay of the second moment.
        tau: Adaptivity: added to the root of the second moment.
        v0: Where the second moment begins; None is tau^2.
        weighting: Weigh clients by their samples, or all alike.
    """
    moments = terms.AdaptiveServer(beta1, beta2, tau, tau**2 if v0 is None else v0, server.yogi)
    return Algorithm(moments, server=at(server_lr), weight=WEIGHTS[weighting])


def fedadagrad(
    server_lr: float = 0.01,
    beta1: float = 0.0,
    tau: float = 1e-3,
    v0: float | None = None,
    weighting: Weighting = "by_size",
) -> Algorithm:
    """FedAdagrad: steps shrink with the sum of squared updates (Reddi et al., ICLR 2021).

    Args:
        server_lr: The server's learning rate.
        beta1: Decay of the first moment; 0 in the paper.
        tau: Adaptivity: added to the root of the sum.
        v0: Where the sum begins; None is tau^2.
        weighting: Weigh clients by their samples, or all alike.
    """
    moments = terms.AdaptiveServer(beta1, 0.0, tau, tau**2 if v0 is None else v0, server.adagrad)
    return Algorithm(moments, server=at(server_lr), weight=WEIGHTS[weighting])


def fedacg(beta: float = 0.85, prox: float = 0.001, weighting: Weighting = "uniform") -> Algorithm:
    """FedACG: clients start where the server's momentum leads (Kim et al., CVPR 2024).

    Args:
        beta: The momentum, lambda in the paper.
        prox: Strength of the pull to the start, `prox ||u - start||^2` without a half, as in the
            code (FedTOGA's tables: mu = 0.01 with a half, which is 0.005 here).
        weighting: Weigh clients by their samples, or all alike.
    """
    return Algorithm(terms.AcceleratedStart(beta, prox), weight=WEIGHTS[weighting])


def fedinit(
    beta: float = 0.1,
    first_participation: First = "init",
    server: Literal["moves", "models"] = "moves",
    server_lr: float = 1.0,
    weighting: Weighting = "uniform",
) -> Algorithm:
    """FedInit: relaxed initialisation, clients start away from their own last model (Sun et al., NeurIPS 2023).

    Args:
        beta: How far, in differences between the received and the own last model.
        first_participation: At a first visit w^0 stands for the own last model, or there is no
            shift.
        server: Add the clients' moves from their starts (released code), or take the mean of their
            models.
        server_lr: How far the global model moves.
        weighting: Weigh clients by their samples, or all alike.
    """
    start = terms.RelaxedInitialization(beta, FIRST[first_participation], server == "models")
    return Algorithm(start, server=at(server_lr), weight=WEIGHTS[weighting])
