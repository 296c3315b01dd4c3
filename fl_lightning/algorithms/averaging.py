"""Averaging and its weights."""

from typing import Literal

from fl_lightning import terms
from fl_lightning.algorithms.shared_options import WEIGHTS, ProxClip, Weighting, at, dynamic
from fl_lightning.core.algorithm import Algorithm
from fl_lightning.core.weighting import Disco


def fedavg(server_lr: float = 1.0, weighting: Weighting = "by_size") -> Algorithm:
    """FedAvg: the mean of the clients' models (McMahan et al., AISTATS 2017).

    Args:
        server_lr: How far the global model moves towards the mean.
        weighting: Weigh clients by their samples, or all alike.
    """
    return Algorithm(server=at(server_lr), weight=WEIGHTS[weighting])


def fedprox(
    mu: float = 0.1,
    server_lr: float = 1.0,
    weighting: Weighting = "by_size",
    prox_clip: ProxClip = "whole",
) -> Algorithm:
    """FedProx: a quadratic pull towards the received model (Li et al., MLSys 2020).

    Args:
        mu: Strength of the pull, `mu/2 ||w - w^t||^2` (FedSOL's tables 1.0).
        server_lr: How far the global model moves towards the mean.
        weighting: Weigh clients by their samples, or all alike.
        prox_clip: Let clipping see the whole pull, or, as FL-Simulator's code, only the half `-mu
            w^t`.
    """
    split = prox_clip == "split"
    pull = (terms.Proximal(mu, split), terms.UnclippedPull(mu)) if split else (terms.Proximal(mu),)
    return Algorithm(*pull, server=at(server_lr), weight=WEIGHTS[weighting])


def fednova(
    variates: Literal["none", "own", "mean"] = "none",
    server_lr: float = 1.0,
    weighting: Weighting = "by_size",
) -> Algorithm:
    """FedNova: the mean of each client's progress per unit of path, momentum counted in (Wang et al., NeurIPS 2020).

    Args:
        variates: Correct gradients by the client's last mean gradient alone, as FedSOL's repository
            released it (behind its published FedNova numbers), or by its difference to the mean of
            all, as was meant.
        server_lr: How far the global model moves.
        weighting: Weigh clients by their samples, or all alike.
    """
    correction = {
        "none": (),
        "own": (terms.LastGradientVariate(),),
        "mean": (terms.CenteredGradientVariate(),),
    }[variates]
    return Algorithm(
        terms.NormalizedAveraging(), *correction, server=at(server_lr), weight=WEIGHTS[weighting]
    )


def feddisco(
    a: float = 0.5,
    b: float = 0.1,
    alpha: float | None = None,
    size_weighting: bool = False,
    prox_clip: ProxClip = "whole",
) -> Algorithm:
    """FedDisco: clients with skewed labels weigh less (Ye et al., ICML 2023).

    Args:
        a: How much a client's share of the cohort's discrepancy takes off its weight.
        b: Added to every weight.
        alpha: Coefficient of the FedDyn that it is put on, as in most of the paper's results; none
            for FedAvg.
        size_weighting: Divide alpha by the client's relative size, as FedSSG's code does.
        prox_clip: Let clipping see the whole pull of FedDyn, or, as FedSSG's code, only the half
            `h_i - w^t`.
    """
    base = (
        () if alpha is None else dynamic(alpha, prox_clip=prox_clip, size_weighting=size_weighting)
    )
    return Algorithm(*base, weight=Disco(a, b))
