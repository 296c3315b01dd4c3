"""Drift correction: control variates, duals, client momentum."""

from typing import Literal

from fl_lightning import terms
from fl_lightning.algorithms.shared_options import (
    LENGTHS,
    WEIGHTS,
    Dual,
    Length,
    ProxClip,
    Weighting,
    at,
    dynamic,
    scale_of,
)
from fl_lightning.core.algorithm import Algorithm
from fl_lightning.terms import dual as duals
from fl_lightning.terms.drift import one


def scaffold(
    server_lr: float = 1.0,
    correction_lr: Length = "current",
    size_weighting: bool = False,
    weighting: Weighting = "uniform",
) -> Algorithm:
    """SCAFFOLD, option II: control variates against client drift (Karimireddy et al., ICML 2020).

    Args:
        server_lr: How far the global model moves towards the mean.
        correction_lr: Divide moves by this visit's own steps and rates, or by one undecayed K eta_0
            (FedSSG's code).
        size_weighting: Divide c by the client's relative size in the step, as FedSSG's code does.
        weighting: Weigh clients' models all alike, or by their samples (FedSOL's code).
    """
    variate = terms.ControlVariate(
        length=LENGTHS[correction_lr], scale=scale_of(size_weighting), kept=one
    )
    return Algorithm(variate, server=at(server_lr), weight=WEIGHTS[weighting])


def feddyn(
    alpha: float = 0.1,
    dual: Dual = "all",
    size_weighting: bool = False,
    prox_clip: ProxClip = "whole",
    weighting: Weighting = "uniform",
) -> Algorithm:
    """FedDyn: dynamic regularisation, a dual for each client (Acar et al., ICLR 2021).

    Args:
        alpha: Strength of the regulariser (FL-Simulator 0.1; FedTOGA's LeNet tables and FedSSG's
            0.01).
        dual: The server adds the mean dual of all clients, or of the active ones.
        size_weighting: Divide alpha by the client's relative size, as the authors' code does.
        prox_clip: Let clipping see the whole pull, or, as the authors' code, only the half `h_i -
            w^t`.
        weighting: Weigh clients' models all alike, or by their samples (FedSOL's code).
    """
    return Algorithm(*dynamic(alpha, dual, prox_clip, size_weighting), weight=WEIGHTS[weighting])


def fedvra(gamma: float = 0.1, a: float = 7.0, d: float | None = None) -> Algorithm:
    """FedVRA: ADMM with a dual step of its own, reconstructed (Wang et al., AAAI 2023). a = 1 is FedDyn.

    Args:
        gamma: Strength of the proximal term and the dual.
        a: Dual step (7 in FedSSG's text; 0 to N/M is sound).
        d: Aggregation step; none is N/M, which makes the models' part a mean (10 in FedSSG's text,
            at N/M = 10).
    """
    return Algorithm(terms.FedVRADual(gamma, a=a, d=d))


def feddc(
    alpha: float = 0.01,
    dual: Dual = "all",
    correction_lr: Length = "current",
    size_weighting: bool = True,
) -> Algorithm:
    """FedDC: FedDyn's memory and SCAFFOLD's correction at once (Gao et al., CVPR 2022).

    Args:
        alpha: Strength of the regulariser.
        dual: The server adds the mean memory of all clients (code) or of the active ones (paper).
        correction_lr: Divide moves by this visit's own steps and rates, or by one undecayed K eta_0
            (code).
        size_weighting: Divide alpha and the server's variate by the client's relative size, as the
            code does.
    """
    variate = terms.ControlVariate(length=LENGTHS[correction_lr], scale=scale_of(size_weighting))
    return Algorithm(*dynamic(alpha, dual, size_weighting=size_weighting), variate)


def fedcm(alpha: float = 0.1, server_lr: float = 1.0) -> Algorithm:
    """FedCM: client steps mixed with the global momentum (Xu et al., arXiv 2106.10874).

    Args:
        alpha: Weight of the client's own gradient; the momentum has the rest.
        server_lr: How far the global model moves towards the mean.
    """
    return Algorithm(terms.ClientMomentum(alpha), server=at(server_lr))


def fedssg(
    alpha: float = 0.05,
    gate: Literal["horizon", "running", "none"] = "horizon",
    gate_map: Literal["identity", "clip01", "logistic"] = "identity",
    gate_offset: float = 1.0,
    gate_alignment: bool = False,
    gate_memory: bool = True,
    alignment: Literal["inner", "proximal", "none"] = "inner",
    correction: bool = True,
    correction_lr: Length = "base",
    aggregation: Literal["all", "active", "inverse_n"] = "all",
    size_weighting: bool = True,
) -> Algorithm:
    """FedSSG: drift memory gated by how often a client was drawn (arXiv 2509.13895).

    Its ablation table is four switches: alignment none, correction false, gate none, and all of
    them.

    Args:
        alpha: Strength of the alignment.
        gate: Draws so far over those expected in the whole run (appendix, code), or so far (main
            text); none for 1.
        gate_map: What the ratio goes through.
        gate_offset: Added to it (1 in the code, 0 in the text).
        gate_alignment: Multiply the alignment by the gate too (main text).
        gate_memory: The gradient memory learns from gated moves (code), or from plain ones.
        alignment: The inner product with the memory (appendix, code), FedDC's proximal form (main
            text), or none.
        correction: Correct gradients by the gradient memories.
        correction_lr: Divide moves by one undecayed K eta_0 (code), or by this visit's own steps
            and rates.
        aggregation: Add the mean memory of all clients (code), of the active ones (Eq. 28), or take
            the active ones' sum over N (Algorithm 1's letter, which shrinks the model unless
            everyone takes part).
        size_weighting: Divide alpha and the server's memory by the client's relative size.
    """
    return Algorithm(
        terms.SSG(
            alpha,
            gate={"horizon": duals.horizon, "running": duals.running, "none": None}[gate],
            shape={"identity": duals.identity, "clip01": duals.clipped, "logistic": duals.logistic}[
                gate_map
            ],
            offset=gate_offset,
            align={"inner": duals.inner_product, "proximal": duals.proximal, "none": None}[
                alignment
            ],
            gated_alignment=gate_alignment,
            gated_variate=gate_memory,
            correction=float(correction),
            length=LENGTHS[correction_lr],
            scale=scale_of(size_weighting),
            amend={"all": None, "active": duals.over_cohort, "inverse_n": duals.over_all_clients}[
                aggregation
            ],
        )
    )
