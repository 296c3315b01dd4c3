"""Averaging and its weights."""

from typing import Literal

from fl_lightning.algorithms import shared_options as opt
from fl_lightning.core.algorithm import Algorithm
from fl_lightning.core.constraints import FiniteFloat, NonNegativeFloat, checked
from fl_lightning.core.weighting import Disco, by_size
from fl_lightning.terms import CenteredGradientVariate, NormalizedAveraging, Proximal
from fl_lightning.terms.released import LastGradientVariate, SplitProximal, UnclippedPull


def fedavg() -> Algorithm:
    r"""FedAvg: the mean of the clients' models (McMahan et al., AISTATS 2017).

    Clients step along g(w); the server moves by the weighted mean of u_i - w^t.

    Formula:
        step: w \gets w - \eta\, g(w)
        server: w^{t+1} = w^t + \sum_{i \in S} p_i\, (u_i - w^t)

    References:
        McMahan et al., AISTATS 2017, https://arxiv.org/abs/1602.05629
    """
    return Algorithm(weight=by_size)


@checked
def fedprox(mu: NonNegativeFloat = 0.1, prox_clip: opt.ProxClip = "whole") -> Algorithm:
    r"""FedProx: a quadratic pull towards the received model (Li et al., MLSys 2020).

    Clients step along g(w) + mu (w - w^t).

    Formula:
        step: w \gets w - \eta\, [\, g(w) + \mu\, (w - w^t) \,]

    Args:
        mu: Strength of the pull, `mu/2 ||w - w^t||^2` (FedSOL's tables 1.0).

    References:
        Li et al., MLSys 2020, https://arxiv.org/abs/1812.06127

    Released code:
        FL-Simulator clips the half -mu w^t alone: `prox_clip="split"`.
    """
    split = SplitProximal(mu), UnclippedPull(mu)
    pull = (Proximal(mu),) if prox_clip == "whole" else split
    return Algorithm(*pull, weight=by_size)


@checked
def fednova(variates: Literal["none", "own", "mean"] = "none") -> Algorithm:
    r"""FedNova: the mean progress of clients per unit of path (Wang et al., NeurIPS 2020).

    With path length tau_i the server moves by mean(tau_i) mean((u_i - w^t) / tau_i).

    Formula:
        server: w^{t+1} = w^t + \Bigl( \sum_{i \in S} p_i\, \tau_i \Bigr) \sum_{i \in S} p_i\,
            \frac{u_i - w^t}{\tau_i}, \quad \tau_i = \eta K_i

    Args:
        variates: Gradient correction: none, minus the client's last mean gradient (FedSOL's
            repository), or its difference to the mean of all clients.

    References:
        Wang et al., NeurIPS 2020, https://arxiv.org/abs/2007.07481

    Released code:
        FedSOL's repository subtracts d_i from each gradient without adding their mean back; its
        published FedNova numbers are those of `variates="own"`.
    """
    own, mean = (LastGradientVariate(),), (CenteredGradientVariate(),)
    correction = {"none": (), "own": own, "mean": mean}[variates]
    return Algorithm(NormalizedAveraging(), *correction, weight=by_size)


@checked
def feddisco(
    a: NonNegativeFloat = 0.5,
    b: FiniteFloat = 0.1,
    alpha: opt.Alpha | None = None,
    size_weighting: opt.SizeWeighting = False,
    prox_clip: opt.ProxClip = "whole",
) -> Algorithm:
    r"""FedDisco: clients with skewed labels weigh less (Ye et al., ICML 2023).

    Aggregation weights max(0, p_i - a k_i + b), with k_i the client's share of the cohort's label
    discrepancies. p_i is the client's share of the samples, or 1/M with `--weighting uniform`.

    Formula:
        server: w^{t+1} = w^t + \sum_{i \in S} \hat{p}_i\, (u_i - w^t), \quad \hat{p}_i \propto
            \max(0,\, p_i - a\, k_i + b)
        with: k_i = D_i \Big/ \sum_{j \in S} D_j, \quad D_i = \mathrm{KL}(\text{labels of } i \,\|\,
            \text{uniform})

    Args:
        a: Amount that the whole discrepancy takes off a weight.
        b: Number added to every weight.
        alpha: For FedDisco on FedDyn, as in most of the paper's results; none is on FedAvg.

    References:
        Ye et al., ICML 2023, https://arxiv.org/abs/2305.19229

    Released code:
        FedSSG's code divides alpha by the client's relative size (`size_weighting`) and clips only
        the half h_i - w^t of FedDyn's pull (`prox_clip="split"`).
    """
    base = () if alpha is None else opt.dynamic(alpha, "all", prox_clip, size_weighting)
    return Algorithm(*base, weight=Disco(a, b))
