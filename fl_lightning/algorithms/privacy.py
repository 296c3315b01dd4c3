"""Differential privacy of clients: clipped updates, noise on their sum; with --sampling bernoulli.

`docs/guides/privacy.md` says what is protected, and what is refused.
"""

from fl_lightning.algorithms import shared_options as opt
from fl_lightning.core.algorithm import Algorithm
from fl_lightning.core.constraints import checked
from fl_lightning.terms import SAM, AdaptiveClipping, GaussianMechanism


@checked
def dp_fedavg(
    clip: opt.ClipNorm = 1.0,
    noise_multiplier: opt.NoiseMultiplier = 1.0,
    delta: opt.PrivacyDelta = 1e-5,
    accountant: opt.Accountant = "rdp",
    quantile: opt.Quantile = None,
    clip_lr: opt.ClipRate = 0.2,
) -> Algorithm:
    r"""DP-FedAvg: clipped updates with noise on their sum (McMahan et al., ICLR 2018).

    The server moves by (sum_i delta_i min(1, C / ||delta_i||) + z C n) / (q N), where each of N
    clients takes part with probability q, and n is standard normal.

    Formula:
        server: w^{t+1} = w^t + \frac{1}{qN} \Bigl( \sum_{i \in S} \delta_i\, \min\Bigl(1,
            \frac{C}{\|\delta_i\|}\Bigr) + z\, C\, n \Bigr), \quad \delta_i = u_i - w^t, \quad n
            \sim \mathcal{N}(0, I)
        with: q \text{: the probability that a client takes part}

    Args:
        clip: C. McMahan et al.'s language models 15, Shi et al.'s CIFAR-10 tables 0.2.
        noise_multiplier: z. McMahan et al. 1, Shi et al. 0.95.
        quantile: Andrew et al. (NeurIPS 2021) 0.5.

    References:
        McMahan et al., ICLR 2018, https://arxiv.org/abs/1710.06963

        Andrew et al., NeurIPS 2021, https://arxiv.org/abs/1905.03871
    """
    mechanism = clip, noise_multiplier, delta, accountant
    if quantile is None:
        return Algorithm(GaussianMechanism(*mechanism))
    return Algorithm(AdaptiveClipping(*mechanism, quantile, clip_lr))


@checked
def dp_fedsam(
    rho: opt.Rho = 0.5,
    clip: opt.ClipNorm = 0.2,
    noise_multiplier: opt.NoiseMultiplier = 0.95,
    delta: opt.PrivacyDelta = 1e-5,
    accountant: opt.Accountant = "rdp",
    quantile: opt.Quantile = None,
    clip_lr: opt.ClipRate = 0.2,
) -> Algorithm:
    r"""DP-FedSAM: DP-FedAvg with sharpness-aware steps (Shi et al., CVPR 2023).

    Clients step along g(w + rho g(w) / ||g(w)||). The server moves as in DP-FedAvg. In the paper
    each client adds its share of the noise; their sum is the noise that the server adds here.

    Formula:
        step: w \gets w - \eta\, g(w + e), \quad e = \rho\, \unit{g(w)}
        as: dp_fedavg

    References:
        Shi et al., CVPR 2023, https://arxiv.org/abs/2303.11242
    """
    private = dp_fedavg(clip, noise_multiplier, delta, accountant, quantile, clip_lr)
    return Algorithm(SAM(rho), *private.terms)
