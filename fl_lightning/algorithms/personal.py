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
from fl_lightning.terms import Alternate, Ditto, FirstOrderMAML, LocalOnly, Personal


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
def fedper() -> Algorithm:
    """FedPer: a common body, and a head of each client's own (Arivazhagan et al., 2019).

    Clients train both together, and send the body alone.

    References:
        Arivazhagan et al., 2019, https://arxiv.org/abs/1912.00818
    """
    return Algorithm(Personal("head"), weight=by_size)


@checked
def lg_fedavg() -> Algorithm:
    """LG-FedAvg: a common head, and a body of each client's own (Liang et al., 2020).

    Clients train both together, and send the head alone. The authors begin with a model that
    FedAvg has trained; here all begin with w^0.

    References:
        Liang et al., 2020, https://arxiv.org/abs/2001.01523
    """
    return Algorithm(Personal("body"), weight=by_size)


@checked
def fedbn() -> Algorithm:
    """FedBN: normalization layers of each client's own (Li et al., ICLR 2021).

    Their weights and running statistics stay with the client. The server's model keeps the initial
    ones, so that its own test accuracy says little.

    References:
        Li et al., ICLR 2021, https://openreview.net/forum?id=6YEQUn0QICG
    """
    return Algorithm(Personal("norm"))


@checked
def fedrep(
    head_share: Annotated[
        UnitInterval,
        Doc("Share of the local steps that train the head, before the others train the body."),
    ] = 10 / 11,
) -> Algorithm:
    """FedRep: FedPer in two steps, first the head, then the body (Collins et al., ICML 2021).

    Plain SGD leaves the other part alone; momentum and weight decay go on in it.

    Args:
        head_share: Ten of eleven local epochs, as in the paper for CIFAR-10 over 100 clients.

    References:
        Collins et al., ICML 2021, https://proceedings.mlr.press/v139/collins21a.html
    """
    return Algorithm(Alternate("head", head_share), Personal("head"))


@checked
def ditto(
    lam: Annotated[NonNegativeFloat, Doc("Strength of the pull to the common model.")] = 1.0,
) -> Algorithm:
    """Ditto: a personal model of each client, pulled to the common one (Li et al., ICML 2021).

    The common model is FedAvg's. Each local step also steps the client's own model v_i along
    g(v_i) + lam (v_i - w^t), on the same batch.

    Args:
        lam: The paper chooses among 0.1, 1 and 2.

    References:
        Li et al., ICML 2021, https://arxiv.org/abs/2012.04221
    """
    return Algorithm(Ditto(lam))


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
