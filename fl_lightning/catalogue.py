"""The named algorithms of the papers, each a function from its coefficients to an `Algorithm`.

The module is the registry: its public functions are what `--algorithm` finds. Defaults are the papers' (see each).
"""

from collections.abc import Callable
from functools import partial
from inspect import isfunction
from typing import Literal

from torch.optim import SGD

from fl_lightning import terms
from fl_lightning.algorithm import Algorithm, OptimizerFactory, Weight, by_size, uniform
from fl_lightning.term import Begin, Term, initial, received
from fl_lightning.terms import perturb

Weighting = Literal["uniform", "by_size"]
_WEIGHTS: dict[str, Weight] = {"uniform": uniform, "by_size": by_size}
_FIRST: dict[str, Begin] = {"init": initial, "skip": received}
_ASCENTS = {"local": perturb.own, "neighbour": perturb.neighbour, "fusion": perturb.fusion}
_SCALES = {"gradient": perturb.per_length, "epochs": perturb.per_epoch, "steps": perturb.per_step}


def _at(server_lr: float) -> OptimizerFactory:
    return partial(SGD, lr=server_lr)


def fedavg(server_lr: float = 1.0, weighting: Weighting = "by_size") -> Algorithm:
    """FedAvg: the mean of the clients' models (McMahan et al., AISTATS 2017).

    Args:
        server_lr: How far the global model moves towards the mean.
        weighting: Weigh clients by their samples, or all alike.
    """
    return Algorithm(server=_at(server_lr), weight=_WEIGHTS[weighting])


def fedprox(mu: float = 0.1, server_lr: float = 1.0, weighting: Weighting = "by_size") -> Algorithm:
    """FedProx: a quadratic pull towards the received model (Li et al., MLSys 2020).

    Args:
        mu: Strength of the pull, `mu/2 ||w - w^t||^2`.
        server_lr: How far the global model moves towards the mean.
        weighting: Weigh clients by their samples, or all alike.
    """
    return Algorithm(terms.Proximal(mu), server=_at(server_lr), weight=_WEIGHTS[weighting])


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
    moments = terms.Adaptive(beta1, beta2, tau, tau**2 if v0 is None else v0)
    return Algorithm(moments, server=_at(server_lr), weight=_WEIGHTS[weighting])


def scaffold(server_lr: float = 1.0) -> Algorithm:
    """SCAFFOLD, option II: control variates against client drift (Karimireddy et al., ICML 2020).

    Args:
        server_lr: How far the global model moves towards the mean.
    """
    return Algorithm(terms.ControlVariate(), server=_at(server_lr))


def feddyn(alpha: float = 0.1) -> Algorithm:
    """FedDyn: dynamic regularisation, a dual for each client (Acar et al., ICLR 2021).

    Args:
        alpha: Strength of the regulariser (FL-Simulator 0.1; FedTOGA's LeNet tables 0.01).
    """
    return Algorithm(terms.DynamicRegularizer(alpha))


def fedcm(alpha: float = 0.1, server_lr: float = 1.0) -> Algorithm:
    """FedCM: client steps mixed with the global momentum (Xu et al., arXiv 2106.10874).

    Args:
        alpha: Weight of the client's own gradient; the momentum has the rest.
        server_lr: How far the global model moves towards the mean.
    """
    return Algorithm(terms.ClientMomentum(alpha), server=_at(server_lr))


def fedsam(rho: float = 0.01, server_lr: float = 1.0, weighting: Weighting = "uniform") -> Algorithm:
    """FedSAM: clients take sharpness-aware steps (Qu et al., ICML 2022).

    Args:
        rho: Radius of the perturbation (FedLESAM's and FedTOGA's tables: 0.01).
        server_lr: How far the global model moves towards the mean.
        weighting: Weigh clients by their samples, or all alike.
    """
    return Algorithm(terms.SAM(rho), server=_at(server_lr), weight=_WEIGHTS[weighting])


def mofedsam(rho: float = 0.1, alpha: float = 0.1, server_lr: float = 1.0) -> Algorithm:
    """MoFedSAM: FedCM with sharpness-aware gradients (Qu et al., ICML 2022).

    Args:
        rho: Radius of the perturbation (FL-Simulator 0.1, FedTOGA's tables 0.01).
        alpha: Weight of the client's own gradient; the momentum has the rest.
        server_lr: How far the global model moves towards the mean.
    """
    return Algorithm(terms.SAM(rho), terms.ClientMomentum(alpha), server=_at(server_lr))


def fedgamma(rho: float = 0.1, server_lr: float = 1.0) -> Algorithm:
    """FedGAMMA: SCAFFOLD with sharpness-aware gradients (Dai et al., TNNLS 2023).

    Args:
        rho: Radius of the perturbation (FedLESAM 0.1, FL-Simulator 0.01).
        server_lr: How far the global model moves towards the mean.
    """
    return Algorithm(terms.SAM(rho), terms.ControlVariate(), server=_at(server_lr))


def fedspeed(rho: float = 0.1, lam: float = 0.1, dual: Literal["all", "active"] = "all") -> Algorithm:
    """FedSpeed: sharpness-aware steps with a prox-correction dual (Sun et al., ICLR 2023).

    Args:
        rho: Radius of the perturbation; the ascent step is normalised, as in the released code.
        lam: Multiplier of the proximal term and the dual (1/lambda in the paper).
        dual: The server adds the mean dual of all clients (released code, and the published tables) or of the active
            ones (the paper's mean of amended models; its authors report late collapse unless lam decays).
    """
    regularizer = {"all": terms.DynamicRegularizer, "active": terms.CohortDual}[dual]
    return Algorithm(terms.SAM(rho), regularizer(lam))


Reference = Literal["last_active", "last_round", "as_released"]
First = Literal["init", "skip"]


def _lesam(rho: float, reference: str, first_participation: str) -> Term:
    references: dict[str, Callable[[], Term]] = {
        "last_active": lambda: terms.LESAM(rho, _FIRST[first_participation]),
        "last_round": lambda: terms.LastRound(rho),
        "as_released": lambda: terms.LastRound(rho, perturb.by_first_coordinates, eps=1e-7),
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
        reference: The older model that the perturbation points to: the one received at the last visit (paper), the last
            round's for everybody (the intent of the code), or the code with its indexing slip.
        first_participation: At a first visit refer to w^0, or do not perturb.
        server_lr: How far the global model moves towards the mean.
        weighting: Weigh clients by their samples, or all alike.
    """
    perturbation = _lesam(rho, reference, first_participation)
    return Algorithm(perturbation, server=_at(server_lr), weight=_WEIGHTS[weighting])


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
    return Algorithm(perturbation, terms.ControlVariate(correction), server=_at(server_lr))


def fedlesam_d(
    rho: float = 0.1, reference: Reference = "last_active", first_participation: First = "init", lam: float = 0.1
) -> Algorithm:
    """FedLESAM-D: FedLESAM's perturbation on FedDyn (Fan et al., ICML 2024).

    Args:
        rho: Radius of the perturbation.
        reference: See `fedlesam`.
        first_participation: See `fedlesam`.
        lam: Multiplier of the proximal term and the dual.
    """
    return Algorithm(_lesam(rho, reference, first_participation), terms.DynamicRegularizer(lam))


def fedtoga(
    rho: float = 0.1,
    kappa: float = 1.0,
    beta: float = 0.8,
    lam: float = 0.1,
    perturbation: Literal["local", "neighbour", "fusion"] = "local",
    carry: bool = False,
    delta: Literal["steps", "epochs", "gradient"] = "steps",
    dual: Literal["all", "active"] = "all",
) -> Algorithm:
    """FedTOGA: perturbation and dual corrected by the global trend Delta (arXiv 2408.14144, Algorithm 1).

    kappa = 0 drops the SAM correction, kappa = beta = 0 leaves SAM with FedDyn's regulariser (the ablation rows).

    Args:
        rho: Radius of the perturbation.
        kappa: Weight of Delta in the ascent direction.
        beta: Weight of Delta in the descent direction (0.8 or 0.9).
        lam: Multiplier of the proximal term and the dual, 1/alpha in the paper's formulas. The paper prints alpha = 0.1
            for what its code family uses as the multiplier itself.
        perturbation: Ascend along the own gradient, the previous perturbed one (one pass a step), or their sum.
        carry: Keep the previous perturbed gradient from one visit of a client to the next.
        delta: What the mean movement is divided by: the number of local steps (the letter of Algorithm 1, and its
            proofs: Delta is about the learning rate times a gradient, so that kappa and beta act gently), of epochs
            (the K of its experiments), or the length of the path, which makes Delta a gradient as FedCM's; that acts
            like server momentum beta, and wants a smaller one where clients differ much.
        dual: The server's dual sums over all clients (the fixed point of the paper's appendix) or over the active ones
            (the letter of Algorithm 1).
    """
    trend = terms.TOGA(rho, kappa, beta, _ASCENTS[perturbation], _SCALES[delta], carry)
    return Algorithm(trend, terms.DynamicRegularizer(lam, share={"all": None, "active": 1.0}[dual]))


def algorithms() -> dict[str, Callable[..., Algorithm]]:
    """Every algorithm of this module, by name."""
    here = {name: f for name, f in globals().items() if isfunction(f) and name[0] != "_"}
    return {name: here[name] for name in sorted(here) if here[name].__annotations__.get("return") is Algorithm}
