"""Methods whose clients end with models of their own; `--finetune-epochs` scores them."""

from typing import Literal

from fl_lightning import terms
from fl_lightning.algorithms.representation import Per, Scope, fedsol
from fl_lightning.algorithms.shared_options import WEIGHTS, Weighting
from fl_lightning.core.algorithm import Algorithm
from fl_lightning.core.prediction import NearestNeighbours


def local_only() -> Algorithm:
    """Local only: every client trains its own model alone, from common initial weights."""
    return Algorithm(terms.LocalOnly())


def fedbabu(weighting: Weighting = "uniform") -> Algorithm:
    """FedBABU: only the body is trained and averaged; clients then fine-tune all (Oh et al., ICLR 2022).

    The head stays as it was drawn, the same for everybody.

    Args:
        weighting: Weigh clients by their samples, or all alike.
    """
    return Algorithm(weight=WEIGHTS[weighting], trains_head=False)


def perfedavg(alpha: float = 0.01, weighting: Weighting = "uniform") -> Algorithm:
    """Per-FedAvg, first order: a model that one step makes good (Fallah et al., NeurIPS 2020).

    One half of each batch adapts, the other half gives the gradient, so the paper's batches want
    twice the batch size; the outer rate, its beta, is the local learning rate.

    Args:
        alpha: The inner learning rate.
        weighting: Weigh clients by their samples, or all alike.
    """
    return Algorithm(terms.FirstOrderMAML(alpha), weight=WEIGHTS[weighting])


def knn_per(
    neighbours: int = 7,
    mix: float = 0.5,
    scale: float = 1.0,
    capacity: int | None = None,
    combine: Literal["probabilities", "logits"] = "probabilities",
    weighting: Weighting = "by_size",
) -> Algorithm:
    """kNN-Per: FedAvg, whose clients ask the neighbours among their own samples too (Marfoq et al., ICML 2022).

    Args:
        neighbours: How many vote (FedSOL's code 5).
        mix: Weight of the vote; the model has the rest.
        scale: Of the squared feature distances.
        capacity: Samples that a client stores; none is all (FedSOL's code 500).
        combine: Mix the vote with the model's probabilities, or with its raw logits, as the
            authors' code by a slip.
        weighting: Weigh clients by their samples, or all alike.
    """
    predict = NearestNeighbours(neighbours, mix, scale, capacity, combine == "logits")
    return Algorithm(weight=WEIGHTS[weighting], predict=predict)


def fedsol_ft(
    rho: float = 2.0,
    strength: Literal["adaptive", "fixed"] = "adaptive",
    per: Per = "column",
    scope: Scope = "head",
    tau: float = 3.0,
    weighting: Weighting = "by_size",
) -> Algorithm:
    """FedSOL-FT: FedSOL's model, fine-tuned by every client with plain SGD (Lee et al., CVPR 2024).

    Args:
        rho: Radius of the perturbation.
        strength: Weigh the perturbation by how far each weight has moved, or not.
        per: Adaptive strength over the norm of each column or of the whole parameter.
        scope: What is perturbed.
        tau: Temperature of the distillation.
        weighting: Weigh clients by their samples, or all alike.
    """
    return fedsol(rho, strength, per, scope, tau=tau, weighting=weighting)
