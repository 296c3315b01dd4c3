"""Asynchronous servers: clients finish late, from models of earlier rounds."""

from fl_lightning.algorithms import shared_options as opt
from fl_lightning.core.algorithm import Algorithm
from fl_lightning.core.constraints import NonNegativeFloat, checked
from fl_lightning.terms import Mixing, Stale


@checked
def fedbuff(max_staleness: opt.MaxStaleness = 4, decay: opt.StaleDecay = 0.5) -> Algorithm:
    r"""FedBuff: the server steps when a buffer of late updates is full (Nguyen et al., 2022).

    A round is one step of the server, and its cohort the buffer. Each client starts from the model
    of s_i rounds ago, and its move counts (1 + s_i)^-decay.

    Formula:
        start: u_i = w^{t - s_i}, \quad s_i \in \{0, \dots, \mathrm{max}\}
        step: u_i \gets u_i - \eta\, g(u_i)
        server: w^{t+1} = w^t + \eta_s \mean_S (1 + s_i)^{-\mathrm{decay}}\, (u_i - w^{t - s_i})

    References:
        Nguyen et al., AISTATS 2022, https://arxiv.org/abs/2106.06639

    Released code:
        FLSim draws how long a client trains, and its staleness follows. Here staleness is drawn.
        FLSim also divides by the discount of an average staleness, as a larger --server-lr does.
    """
    return Algorithm(Stale(max_staleness, decay))


@checked
def fedasync(
    max_staleness: opt.MaxStaleness = 4, decay: opt.StaleDecay = 0.5, rho: NonNegativeFloat = 0.005
) -> Algorithm:
    r"""FedAsync: the server mixes in late models, one after another (Xie et al., 2019).

    With `--participation` of one client a round is one model that arrives; of several clients the
    server mixes in their mean. Staleness is drawn uniformly, as in the paper's experiments.

    Formula:
        start: u_i = w^{t - s_i}, \quad s_i \in \{0, \dots, \mathrm{max}\}
        step: u_i \gets u_i - \eta\, [\, g(u_i) + \rho\, (u_i - w^{t - s_i}) \,]
        server: w^{t+1} = w^t + \frac{\alpha}{M} \sum_{i \in S} (1 + s_i)^{-\mathrm{decay}}\, (u_i -
            w^t)

    Args:
        rho: Strength of the pull to the model that a client started from. The mixing alpha is
            --server-lr, 0.6 unless given.

    References:
        Xie et al., 2019, https://arxiv.org/abs/1903.03934
    """
    return Algorithm(Mixing(max_staleness, decay, rho), server=opt.sgd(0.6))
