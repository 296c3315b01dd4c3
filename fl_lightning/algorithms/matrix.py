"""Matrix client optimizers."""

from typing import Annotated, Literal

from typing_extensions import Doc

from fl_lightning.algorithms import shared_options as opt
from fl_lightning.core.algorithm import Algorithm
from fl_lightning.core.constraints import (
    BelowOneFloat,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    UnitInterval,
    checked,
)
from fl_lightning.terms import LMO, Alignment, CorrectedLMO, Muon

Gain = Annotated[PositiveFloat, Doc("Learning rate of matrices, in multiples of --lr.")]
Momentum = Annotated[BelowOneFloat, Doc("Decay of the momentum of matrices.")]


@checked
def local_muon(beta: Momentum = 0.95, gain: Gain = 1.0, decay: opt.Decay = 0.01) -> Algorithm:
    r"""Local Muon: clients step by Muon, whose moments begin at 0 in each visit.

    Matrices step along the polar factor of Nesterov's momentum, by five steps of Newton and Schulz;
    vectors by Adam. The output layer counts as a matrix. `fedmuon_lmo` has a momentum that stays.

    Formula:
        start: B = 0
        step: B \gets \beta B + (1 - \beta)\, g(w), \quad w \gets w - \eta\, \mathrm{gain}\,
            \bigl[\, r\, \mathrm{NS}\bigl(\beta B + (1 - \beta)\, g(w)\bigr) + \lambda w \,\bigr]
        with: \mathrm{NS}(U \Sigma V^\top) \approx U V^\top, \quad r = \sqrt{\max(1, \text{rows} /
            \text{columns})}, \quad \lambda = \mathrm{decay}
        vectors: \text{step by AdamW}

    References:
        Jordan et al., 2024, https://kellerjordan.github.io/posts/muon
        Liu et al., 2025, https://arxiv.org/abs/2510.27403
    """
    return opt.own_optimizer(Muon(beta=beta, gain=gain, decay=decay))


@checked
def fedmuon(
    gamma: opt.Gamma = 0.5,
    beta: Momentum = 0.98,
    gain: Gain = 0.5,
    decay: opt.Decay = 0.01,
    rank: NonNegativeFloat = 0.0,
) -> Algorithm:
    r"""FedMuon by alignment: Muon with the cohort's momentum and its last move (Liu et al., 2025).

    Clients step along (1 - gamma) Muon(g) - gamma / K Delta; Delta is the last round's
    mean(u_i - w^t) / eta. Muon's momentum begins as the cohort's mean. See also `fedmuon_lmo`.

    Formula:
        start: B = \overline{B}
        step: B \gets \beta B + (1 - \beta)\, g(w), \quad w \gets w - \eta\, \Bigl[ (1 - \gamma)\, d
            - \frac{\gamma}{K} \Delta \Bigr]
        with: d = \mathrm{gain}\, \bigl[\, r\, \mathrm{NS}\bigl(\beta B + (1 - \beta)\, g(w)\bigr) +
            \lambda w \,\bigr], \quad \mathrm{NS}(U \Sigma V^\top) \approx U V^\top, \quad r =
            \sqrt{\max(1, \text{rows} / \text{columns})}, \quad \lambda = \mathrm{decay}
        vectors: d \text{ is the direction of AdamW}
        server: w^{t+1} = w^t + \mean_S (u_i - w^t), \quad \Delta = \mean_S \frac{u_i - w^t}{\eta},
            \quad \overline{B} = \mean_S B_i

    Args:
        gain: 0.5 for ResNet-18 at --lr 0.03, 10 for ViT-Tiny at 0.0003 (authors' values).
        rank: Rank of the momentum that is sent, as a share of that of equal size; 0 is all.
            `comm/uplink_mb` counts the whole momentum.

    References:
        Liu et al., 2025, https://arxiv.org/abs/2510.27403

    Released code:
        Newton and Schulz in bfloat16; here in the model's dtype. A kernel's step has no factor of
        its shape; here it counts as a matrix of one row a channel, as Newton and Schulz see it.
    """
    return opt.own_optimizer(Muon("whole", beta, gain, decay, rank), Alignment(gamma))


@checked
def fedmuon_lmo(
    alpha: Annotated[UnitInterval, Doc("Weight of the gradient in the momentum.")] = 0.9,
    iterations: NonNegativeInt | None = 5,
    correct: Annotated[bool, Doc("Correct the momentum; if not, this is Local Muon.")] = True,
    server: Literal["damped", "mean"] = "damped",
) -> Algorithm:
    r"""FedMuon by a bias-corrected LMO: steps along a polar factor (Takezawa et al., ICLR 2026).

    Matrices step along the polar factor of M_i - C_i + C, vectors along the unit vector. M_i is the
    momentum, which stays with the client, C_i that of its last visit, C the mean of all clients'.

    Formula:
        start: C_i = M_i
        step: M_i \gets (1 - \alpha)\, M_i + \alpha\, g(w), \quad w \gets w - \eta\, \mathrm{NS}(M_i
            - C_i + C)
        with: \mathrm{NS}(U \Sigma V^\top) \approx U V^\top \text{ of a matrix}, \quad
            \mathrm{NS}(a) = a / \|a\| \text{ of a vector}
        server: w^{t+1} = w^t + \frac{1}{N} \sum_{i \in S} (u_i - w^t), \quad C = \mean_N M_i

    Args:
        iterations: Of Newton and Schulz; 0 steps along the matrix by its norm, none is exact.
        server: Move by M / N of the cohort's mean move (paper), or by the mean.

    References:
        Takezawa et al., ICLR 2026, https://arxiv.org/abs/2509.26337

    Released code:
        There is none of the authors. A reproduction takes the mean in its report (`server="mean"`),
        and the exact polar factor as a default (`iterations=None`). There it has null directions of
        full length, which are rounding noise; here they are left out.
    """
    kind = CorrectedLMO if correct else LMO
    return opt.own_optimizer(kind(alpha, iterations, damp=server == "damped"))


@checked
def fedpac_muon(
    gamma: opt.Gamma = 0.5, beta: Momentum = 0.95, gain: Gain = 0.5, decay: opt.Decay = 0.01
) -> Algorithm:
    r"""FedPAC with Muon: an averaged preconditioner and the last move (Liu et al., ICML 2026).

    As `fedmuon`, with a momentum of 0.95. The authors' learning rate is 0.03.

    Formula:
        as: fedmuon

    References:
        Liu et al., ICML 2026, https://arxiv.org/abs/2602.19271

    Released code:
        gamma is 0.85 in the recommended commands.
    """
    return fedmuon(gamma, beta, gain, decay)
