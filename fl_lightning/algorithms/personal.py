"""Methods whose clients end with personal models; `--finetune-epochs` scores them."""

from typing import Annotated, Literal

from typing_extensions import Doc

from fl_lightning import terms
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


def local_only() -> Algorithm:
    r"""Local only: every client trains its own model alone, from common initial weights.

    The global model does not move, and each client has its own running statistics.

    Formula:
        step: w_i \gets w_i - \eta\, g(w_i)
        server: w^{t+1} = w^t
    """
    return Algorithm(terms.LocalOnly())


def fedbabu() -> Algorithm:
    r"""FedBABU: training of the body alone; clients then fine-tune all (Oh et al., ICLR 2022).

    The head keeps its initial weights, the same for every client.

    Formula:
        step: \theta \gets \theta - \eta\, g_\theta(\theta, \phi^0), \quad w = (\theta, \phi)
            \text{: body and head}
        server: \theta^{t+1} = \mean_S \theta_i, \quad \phi^{t+1} = \phi^0

    References:
        Oh et al., ICLR 2022, https://openreview.net/forum?id=HuaYQfggn5u
    """
    return Algorithm(trains="body")


def fedper() -> Algorithm:
    r"""FedPer: a common body, and a head of each client's own (Arivazhagan et al., 2019).

    Clients train both together, and send the body alone.

    Formula:
        step: (\theta, \phi_i) \gets (\theta, \phi_i) - \eta\, g(\theta, \phi_i), \quad w = (\theta,
            \phi) \text{: body and head}
        server: \theta^{t+1} = \sum_{i \in S} p_i\, \theta_i

    References:
        Arivazhagan et al., 2019, https://arxiv.org/abs/1912.00818
    """
    return Algorithm(terms.Personal("head"), weight=by_size)


def lg_fedavg() -> Algorithm:
    r"""LG-FedAvg: a common head, and a body of each client's own (Liang et al., 2020).

    Clients train both together, and send the head alone. The authors begin with a model that
    FedAvg has trained; here all begin with w^0.

    Formula:
        step: (\theta_i, \phi) \gets (\theta_i, \phi) - \eta\, g(\theta_i, \phi), \quad w = (\theta,
            \phi) \text{: body and head}
        server: \phi^{t+1} = \sum_{i \in S} p_i\, \phi_i

    References:
        Liang et al., 2020, https://arxiv.org/abs/2001.01523
    """
    return Algorithm(terms.Personal("body"), weight=by_size)


def fedbn() -> Algorithm:
    r"""FedBN: normalization layers of each client's own (Li et al., ICLR 2021).

    Their weights and running statistics stay with the client. The server's model keeps the initial
    ones, so that its own test accuracy says little.

    Formula:
        step: (\theta, \nu_i) \gets (\theta, \nu_i) - \eta\, g(\theta, \nu_i), \quad \nu \text{:
            normalization layers}, \; \theta \text{: the others}
        server: \theta^{t+1} = \mean_S \theta_i

    References:
        Li et al., ICLR 2021, https://openreview.net/forum?id=6YEQUn0QICG
    """
    return Algorithm(terms.Personal("norm"))


@checked
def fedrep(head_share: UnitInterval = 10 / 11) -> Algorithm:
    r"""FedRep: FedPer in two steps, first the head, then the body (Collins et al., ICML 2021).

    Plain SGD leaves the other part alone; momentum and weight decay go on in it.

    Formula:
        step: \phi_i \gets \phi_i - \eta\, g_\phi(\theta^t, \phi_i) \text{ first}, \quad w =
            (\theta, \phi) \text{: body and head}
        then: \theta \gets \theta - \eta\, g_\theta(\theta, \phi_i)
        server: \theta^{t+1} = \mean_S \theta_i

    Args:
        head_share: Share of the local steps that train the head, before the others train the body.
            Ten of eleven local epochs, as in the paper for CIFAR-10 over 100 clients.

    References:
        Collins et al., ICML 2021, https://proceedings.mlr.press/v139/collins21a.html
    """
    return Algorithm(terms.Alternate("head", head_share), terms.Personal("head"))


@checked
def ditto(lam: NonNegativeFloat = 1.0) -> Algorithm:
    r"""Ditto: a personal model of each client, pulled to the common one (Li et al., ICML 2021).

    The common model is FedAvg's. Each local step also steps the client's own model v_i along
    g(v_i) + lam (v_i - w^t), on the same batch. Momentum, weight decay and --clip-norm are the
    common model's alone: v_i takes plain steps at the visit's mean rate, which momentum raises.

    Formula:
        step: w \gets w - \eta\, g(w), \quad v_i \gets v_i - \eta\, [\, g(v_i) + \lambda\, (v_i -
            w^t) \,]

    Args:
        lam: Strength of the pull to the common model. The paper chooses among 0.1, 1 and 2.

    References:
        Li et al., ICML 2021, https://arxiv.org/abs/2012.04221
    """
    return Algorithm(terms.Ditto(lam))


@checked
def pfedme(
    lam: NonNegativeFloat = 15.0,
    inner_steps: PositiveInt = 5,
    inner_lr: NonNegativeFloat = 0.09,
    mu: NonNegativeFloat = 0.0,
) -> Algorithm:
    r"""pFedMe: personal models by Moreau envelopes (Dinh et al., NeurIPS 2020).

    In each local step the personal model theta_i takes K steps down the loss, pulled to w; then w
    moves towards it. The paper's beta is the server's learning rate (`--server-lr`).

    Formula:
        start: \theta_i = w = w^t
        step: \theta_i \gets \theta_i - \eta_p\, [\, g(\theta_i) + \lambda\, (\theta_i - w) \,]
            \text{, K times on the batch}
        then: w \gets w - \eta\, \lambda\, (w - \theta_i)
        server: w^{t+1} = (1 - \beta)\, w^t + \frac{\beta}{M} \sum_{i \in S} u_i

    Args:
        lam: Strength of the pull. Local steps are stable at eta lam below 2; authors' eta: 0.005.
        inner_steps: Steps K of theta_i on each batch.
        inner_lr: Their learning rate eta_p (0.1 for a linear model).
        mu: Their weight decay.

    References:
        Dinh et al., NeurIPS 2020, https://arxiv.org/abs/2006.08848

    Released code:
        theta_i decays (`mu=0.001`) and models are averaged by size (`--weighting by_size`). All
        clients train in each round, as in the paper, and the cohort's models alone count; here
        only the cohort trains. theta_i begins a visit at w^t and continues from batch to batch.
    """
    return Algorithm(terms.MoreauEnvelope(lam, inner_steps, inner_lr, mu))


@checked
def apfl(alpha: UnitInterval = 0.5, adaptive: bool = False) -> Algorithm:
    r"""APFL: each client mixes a model of its own into the common one (Deng et al., 2020).

    The common model is FedAvg's. Each local step also steps v_i down the loss of the mixture on the
    same batch, by plain steps as Ditto's.

    Formula:
        step: w \gets w - \eta\, g(w), \quad v_i \gets v_i - \eta\, \alpha\, g(m_i), \quad m_i =
            \alpha\, v_i + (1 - \alpha)\, w
        adaptive: \alpha_i \gets \alpha_i - \eta\, \langle v_i - w, g(m_i) \rangle \text{, kept in }
            [0, 1]

    Args:
        alpha: Weight of v_i in the client's model, which has the received model for w.
        adaptive: Let each client learn its alpha, from this value on.

    References:
        Deng et al., 2020, https://arxiv.org/abs/2003.13461

    Released code:
        FedTorch mixes the two models' outputs, which is the same for a linear model alone, and
        steps v_i where w has stepped already. It adapts alpha in the first step of a visit only,
        along (alpha^2 + (1 - alpha)^2) times the gradient, plus 0.02 alpha.
    """
    return Algorithm(terms.Mixture(alpha, adaptive))


@checked
def perfedavg(
    alpha: Annotated[NonNegativeFloat, Doc("Learning rate of the inner step.")] = 0.01,
) -> Algorithm:
    r"""Per-FedAvg, first order: a model that one step adapts (Fallah et al., NeurIPS 2020).

    Clients step along g(w - alpha g(w; one half of the batch); the other half), so the batch is
    twice the paper's; the paper's beta is the local learning rate.

    Formula:
        step: w \gets w - \eta\, g_2\bigl(w - \alpha\, g_1(w)\bigr), \quad g_1, g_2 \text{:
            gradients on the halves of the batch}

    References:
        Fallah et al., NeurIPS 2020, https://arxiv.org/abs/2002.07948
    """
    return Algorithm(terms.FirstOrderMAML(alpha))


@checked
def knn_per(
    neighbors: PositiveInt = 7,
    mix: UnitInterval = 0.5,
    scale: PositiveFloat = 1.0,
    capacity: PositiveInt | None = None,
    combine: Literal["probabilities", "logits"] = "probabilities",
) -> Algorithm:
    r"""kNN-Per: FedAvg with a vote of a client's nearest samples (Marfoq et al., ICML 2022).

    A client predicts with mix (vote) + (1 - mix) (probabilities of the global model).

    Formula:
        server: w^{t+1} = w^t + \sum_{i \in S} p_i\, (u_i - w^t)
        predict: P_i(y \mid x) = \mathrm{mix}\, V_i(y \mid x) + (1 - \mathrm{mix})\, P_w(y \mid x),
            \quad V_i(y \mid x) \propto \sum_{j \in \mathrm{NN}_i(x),\, y_j = y} \exp\Bigl(
            -\frac{\|z - z_j\|^2}{F\, \mathrm{scale}} \Bigr)
        with: z \in \mathbb{R}^F \text{: features}, \quad \mathrm{NN}_i(x) \text{: the nearest
            samples of client } i

    Args:
        neighbors: Number of neighbors that vote (FedSOL's code 5).
        mix: Weight of the vote; the model has the rest. Choose it on validation data.
        scale: Scale of the squared feature distances.
        capacity: Samples that a client stores, drawn at random; none is all (FedSOL's code 500).
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
    r"""FedSOL-FT: FedSOL's model, fine-tuned by each client with plain SGD (Lee et al., CVPR 2024).

    Formula:
        as: fedsol
        server: w^{t+1} = w^t + \sum_{i \in S} p_i\, (u_i - w^t)
        fine-tuning: w_i \gets w_i - \eta\, g(w_i), \quad w_i = w^T \text{ at first}

    References:
        Lee et al., CVPR 2024, https://arxiv.org/abs/2308.12532
    """
    return fedsol(rho, strength, per, scope, tau=tau)
