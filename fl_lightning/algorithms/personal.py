"""Methods whose clients end with personal models; `--finetune-epochs` scores them."""

from typing import Annotated, Literal

from typing_extensions import Doc

from fl_lightning.algorithms import shared_options as opt
from fl_lightning.algorithms.representation import fedsol
from fl_lightning.core.algorithm import Algorithm
from fl_lightning.core.constraints import (
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    UnitInterval,
    checked,
)
from fl_lightning.core.prediction import NearestNeighbors
from fl_lightning.core.weighting import by_size
from fl_lightning.terms import FirstOrderMAML, LocalOnly


@checked
def local_only() -> Algorithm:
    """Local only: every client trains its own model alone, from common initial weights.

    The global model does not move; only its running statistics are averaged.
    """
    return Algorithm(LocalOnly())


@checked
def fedbabu() -> Algorithm:
    """FedBABU: training of the body alone; clients then fine-tune all (Oh et al., ICLR 2022).

    The head keeps its initial weights, the same for every client.

    References:
        Oh et al., ICLR 2022, https://openreview.net/forum?id=HuaYQfggn5u
    """
    return Algorithm(trains="body")


@checked
def perfedavg(
    alpha: Annotated[NonNegativeFloat, Doc("Learning rate of the inner step.")] = 0.01,
) -> Algorithm:
    """Per-FedAvg, first order: a model that one step adapts (Fallah et al., NeurIPS 2020).

    Clients step along g(w - alpha g(w; one half of the batch); the other half), so the batch is
    twice the paper's; the paper's beta is the local learning rate.

    References:
        Fallah et al., NeurIPS 2020, https://arxiv.org/abs/2002.07948
    """
    return Algorithm(FirstOrderMAML(alpha))


@checked
def knn_per(
    neighbors: PositiveInt = 7,
    mix: UnitInterval = 0.5,
    scale: PositiveFloat = 1.0,
    capacity: PositiveInt | None = None,
    combine: Literal["probabilities", "logits"] = "probabilities",
) -> Algorithm:
    """kNN-Per: FedAvg with a vote of a client's nearest samples (Marfoq et al., ICML 2022).

    A client predicts with mix (vote) + (1 - mix) (probabilities of the global model).

    Args:
        neighbors: Number of neighbors that vote (FedSOL's code 5).
        mix: Weight of the vote; the model has the rest.
        scale: Scale of the squared feature distances.
        capacity: Samples that a client stores; none is all (FedSOL's code 500).
        combine: Mix the vote with the model's probabilities or raw logits.

    References:
        Marfoq et al., ICML 2022, https://arxiv.org/abs/2111.09360

    Released code:
        The authors' mixes the vote with raw logits, by mistake: `combine="logits"`.
    """
    predict = NearestNeighbors(neighbors, mix, scale, capacity, combine == "logits")
    return Algorithm(weight=by_size, predict=predict)


@checked
def fedsol_ft(
    rho: opt.Rho = 2.0,
    strength: opt.Strength = "adaptive",
    per: opt.Per = "column",
    scope: opt.Scope = "head",
    tau: opt.Tau = 3.0,
) -> Algorithm:
    """FedSOL-FT: FedSOL's model, fine-tuned by every client with plain SGD (Lee et al., CVPR 2024).

    References:
        Lee et al., CVPR 2024, https://arxiv.org/abs/2308.12532
    """
    return fedsol(rho, strength, per, scope, tau=tau)
