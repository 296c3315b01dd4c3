"""Sharpness-aware methods."""

from collections.abc import Callable
from typing import Literal

from fl_lightning import terms
from fl_lightning.algorithms.shared_options import (
    FIRST,
    WEIGHTS,
    Dual,
    First,
    ProxClip,
    Weighting,
    at,
    dynamic,
)
from fl_lightning.core.algorithm import Algorithm
from fl_lightning.core.term import Term
from fl_lightning.core.vector import unit
from fl_lightning.terms import lesam as recall
from fl_lightning.terms import perturb

SCALES = {"gradient": perturb.per_length, "epochs": perturb.per_epoch, "steps": perturb.per_step}
Scaled = Literal["all", "weights"]
SCALED = {"all": "", "weights": "weight"}


def fedsam(
    rho: float = 0.01, server_lr: float = 1.0, weighting: Weighting = "uniform"
) -> Algorithm:
    """FedSAM: clients take sharpness-aware steps (Qu et al., ICML 2022).

    Args:
        rho: Radius of the perturbation (FedLESAM's and FedTOGA's tables: 0.01; FedSOL's 0.1).
        server_lr: How far the global model moves towards the mean.
        weighting: Weigh clients by their samples, or all alike.
    """
    return Algorithm(terms.SAM(rho), server=at(server_lr), weight=WEIGHTS[weighting])


def fedasam(
    rho: float = 0.7,
    eta: float = 0.2,
    scaled: Scaled = "weights",
    server_lr: float = 1.0,
    weighting: Weighting = "by_size",
) -> Algorithm:
    """FedASAM: sharpness-aware steps in a ball scaled by the weights (Caldarola et al., ECCV 2022).

    Args:
        rho: Radius of the perturbation (FedSOL's tables 1.0).
        eta: Added to the scale (FedSOL's code 0).
        scaled: Scale by the parameters named weight only, as the authors, or by all, as FedSOL's
            code.
        server_lr: How far the global model moves towards the mean.
        weighting: Weigh clients by their samples, or all alike.
    """
    perturbation = terms.ASAM(rho, eta, SCALED[scaled])
    return Algorithm(perturbation, server=at(server_lr), weight=WEIGHTS[weighting])


def mofedsam(
    rho: float = 0.1,
    alpha: float = 0.1,
    gain: Literal["alpha", "one"] = "alpha",
    server_lr: float = 1.0,
) -> Algorithm:
    """MoFedSAM: FedCM with sharpness-aware gradients (Qu et al., ICML 2022).

    Args:
        rho: Radius of the perturbation (FL-Simulator 0.1, FedTOGA's tables 0.01).
        alpha: Weight of the client's own gradient; the momentum has the rest.
        gain: What multiplies the own gradient; one in FedLESAM's code, by a slip.
        server_lr: How far the global model moves towards the mean.
    """
    momentum = terms.ClientMomentum(alpha, {"alpha": None, "one": 1.0}[gain])
    return Algorithm(terms.SAM(rho), momentum, server=at(server_lr))


def fedgamma(rho: float = 0.1, server_lr: float = 1.0) -> Algorithm:
    """FedGAMMA: SCAFFOLD with sharpness-aware gradients (Dai et al., TNNLS 2023).

    Args:
        rho: Radius of the perturbation (FedLESAM 0.1, FL-Simulator 0.01).
        server_lr: How far the global model moves towards the mean.
    """
    return Algorithm(terms.SAM(rho), terms.ControlVariate(), server=at(server_lr))


def fedspeed(
    rho: float = 0.1,
    lam: float = 0.1,
    mix: float = 1.0,
    ascent: Literal["unit", "raw"] = "unit",
    dual: Dual = "all",
    prox_clip: ProxClip = "whole",
) -> Algorithm:
    """FedSpeed: sharpness-aware steps with a prox-correction dual (Sun et al., ICLR 2023).

    Args:
        rho: Radius of the perturbation.
        lam: Multiplier of the proximal term and the dual (1/lambda in the paper).
        mix: Weight of the perturbed gradient, alpha in the paper; the plain one has the rest
            (released code 1).
        ascent: Ascend by rho along the unit gradient (released code) or by rho times the gradient
            (paper, as independent implementations read it).
        dual: The server adds the mean dual of all clients (released code, and the published tables)
            or of the active ones (the paper's mean of amended models; its authors report late
            collapse unless lam decays).
        prox_clip: Let clipping see the whole pull, or, as the released code, only the half `h_i -
            w^t`.
    """
    return Algorithm(
        terms.SAM(rho, mix, {"unit": unit, "raw": perturb.raw}[ascent]),
        *dynamic(lam, dual, prox_clip),
    )


def fedsmoo(
    rho: float = 0.1,
    lam: float = 0.1,
    consensus: Literal["paper", "released"] = "paper",
    prox_clip: ProxClip = "whole",
) -> Algorithm:
    """FedSMOO: FedDyn with perturbations that agree on a common one (Sun et al., ICML 2023).

    Args:
        rho: Radius of the perturbation.
        lam: Multiplier of the proximal term and the dual.
        consensus: Clients report mu_i less their last perturbation (paper), or mu_i (released
            code).
        prox_clip: Let clipping see the whole pull, or, as the released code, only the half `h_i -
            w^t`.
    """
    lag = {"paper": 1.0, "released": 0.0}[consensus]
    return Algorithm(terms.SMOO(rho, lag), *dynamic(lam, prox_clip=prox_clip))


Reference = Literal["last_active", "last_round", "as_released"]


def _lesam(rho: float, reference: str, first_participation: str) -> Term:
    references: dict[str, Callable[[], Term]] = {
        "last_active": lambda: terms.LESAM(rho, FIRST[first_participation]),
        "last_round": lambda: terms.LastRound(rho),
        "as_released": lambda: terms.LastRound(rho, recall.by_first_coordinates, eps=1e-7),
    }
    return references[reference]()


def fedlesam(
    rho: float = 0.01,
    reference: Reference = "last_active",
    first_participation: First = "init",
    server_lr: float = 1.0,
    weighting: Weighting = "uniform",
) -> Algorithm:
    """FedLESAM: perturb along a local estimate of the global direction, one pass a step (Fan et al., ICML 2024).

    Args:
        rho: Radius of the perturbation.
        reference: The older model that the perturbation points to: the one received at the last
            visit (paper), the last round's for everybody (the intent of the code), or the code with
            its indexing slip.
        first_participation: At a first visit refer to w^0, or do not perturb.
        server_lr: How far the global model moves towards the mean.
        weighting: Weigh clients by their samples, or all alike.
    """
    perturbation = _lesam(rho, reference, first_participation)
    return Algorithm(perturbation, server=at(server_lr), weight=WEIGHTS[weighting])


def fedlesam_s(
    rho: float = 0.1,
    reference: Reference = "last_active",
    first_participation: First = "init",
    correction: float = 1.0,
    server_lr: float = 1.0,
) -> Algorithm:
    """FedLESAM-S: FedLESAM's perturbation on SCAFFOLD (Fan et al., ICML 2024).

    Args:
        rho: Radius of the perturbation.
        reference: See `fedlesam`.
        first_participation: See `fedlesam`.
        correction: Coefficient of c - c_i (0.1 in the released code).
        server_lr: How far the global model moves towards the mean.
    """
    perturbation = _lesam(rho, reference, first_participation)
    return Algorithm(perturbation, terms.ControlVariate(correction), server=at(server_lr))


def fedlesam_d(
    rho: float = 0.1,
    reference: Reference = "last_active",
    first_participation: First = "init",
    lam: float = 0.1,
    prox_clip: ProxClip = "whole",
) -> Algorithm:
    """FedLESAM-D: FedLESAM's perturbation on FedDyn (Fan et al., ICML 2024).

    Args:
        rho: Radius of the perturbation.
        reference: See `fedlesam`.
        first_participation: See `fedlesam`.
        lam: Multiplier of the proximal term and the dual.
        prox_clip: Let clipping see the whole pull, or, as the released code, only the half `h_i -
            w^t`.
    """
    return Algorithm(
        _lesam(rho, reference, first_participation), *dynamic(lam, prox_clip=prox_clip)
    )


def fedtoga(
    rho: float = 0.1,
    kappa: float = 1.0,
    beta: float = 0.8,
    lam: float = 0.1,
    perturbation: Literal["local", "neighbour", "fusion"] = "local",
    carry: bool = False,
    delta: Literal["steps", "epochs", "gradient"] = "steps",
    dual: Dual = "all",
    prox_clip: ProxClip = "whole",
) -> Algorithm:
    """FedTOGA: perturbation and dual corrected by the global trend Delta (arXiv 2408.14144, Algorithm 1).

    kappa = 0 drops the SAM correction, kappa = beta = 0 leaves SAM with FedDyn's regulariser (the
    ablation rows).

    Args:
        rho: Radius of the perturbation.
        kappa: Weight of Delta in the ascent direction.
        beta: Weight of Delta in the descent direction (0.8 or 0.9).
        lam: Multiplier of the proximal term and the dual, 1/alpha in the paper's formulas. The
            paper prints alpha = 0.1 for what its code family uses as the multiplier itself.
        perturbation: Ascend along the own gradient, the previous perturbed one (one pass a step),
            or their sum.
        carry: Keep the previous perturbed gradient from one visit of a client to the next.
        delta: What the mean movement is divided by: the number of local steps (the letter of
            Algorithm 1, and its proofs: Delta is about the learning rate times a gradient, so that
            kappa and beta act gently), of epochs (the K of its experiments), or the length of the
            path, which makes Delta a gradient as FedCM's; that acts like server momentum beta, and
            wants a smaller one where clients differ much.
        dual: The server's dual sums over all clients (the fixed point of the paper's appendix) or
            over the active ones (the letter of Algorithm 1).
        prox_clip: Let clipping see the whole pull, or, as the code family of the papers, only the
            half `h_i - w^t`.
    """
    trend: Term = terms.TOGA(rho, kappa, beta, SCALES[delta])
    if perturbation != "local":
        trend = terms.Neighbour(trend, fusion=perturbation == "fusion", carry=carry)
    return Algorithm(
        trend, *dynamic(lam, prox_clip=prox_clip, share={"all": None, "active": 1.0}[dual])
    )
