"""Adaptive and matrix optimizers on clients."""

from functools import partial
from typing import Annotated, Literal

from torch.optim import SGD
from typing_extensions import Doc

from fl_lightning.core.algorithm import Algorithm
from fl_lightning.core.constraints import (
    BelowOneFloat,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    UnitInterval,
    checked,
)
from fl_lightning.terms import LMO, AdamW, Alignment, CorrectedLMO, Muon, Sophia

Decay = Annotated[NonNegativeFloat, Doc("Decoupled weight decay; it takes --weight-decay's place.")]
First = Annotated[BelowOneFloat, Doc("Decay of the first moment.")]
Second = Annotated[BelowOneFloat, Doc("Decay of the second moment.")]
Eps = Annotated[NonNegativeFloat, Doc("Number added to the root of the second moment.")]
Gamma = Annotated[UnitInterval, Doc("Weight of the global move in every step.")]
Gain = Annotated[PositiveFloat, Doc("Learning rate of matrices, in multiples of --lr.")]
Momentum = Annotated[BelowOneFloat, Doc("Decay of the momentum of matrices.")]


_method = partial(Algorithm, clips=False, sgd_options=("lr",))
"""Plain steps along the terms' direction, which has momentum and decay of its own."""


@checked
def local_adamw(
    beta1: First = 0.9, beta2: Second = 0.999, decay: Decay = 0.01, eps: Eps = 1e-8
) -> Algorithm:
    r"""Local AdamW: clients step by AdamW, whose moments begin at 0 in each visit.

    Clients step along m / (sqrt(s) + eps) + decay w, with corrected moments m of g and s of g^2.
    Its learning rate is near 0.001.

    Formula:
        start: m = s = 0
        step: m \gets \beta_1 m + (1 - \beta_1)\, g(w), \quad s \gets \beta_2 s + (1 - \beta_2)\,
            g(w)^2
        then: w \gets w - \eta\, \Bigl[ \frac{\hat{m}}{\sqrt{\hat{s}} + \epsilon} + \lambda w
            \Bigr], \quad \hat{m} = \frac{m}{1 - \beta_1^k}, \quad \hat{s} = \frac{s}{1 -
            \beta_2^k}, \quad \lambda = \mathrm{decay}
        server: w^{t+1} = w^t + \frac{1}{M} \sum_{i \in S} (u_i - w^t)

    References:
        Loshchilov and Hutter, ICLR 2019, https://arxiv.org/abs/1711.05101
    """
    return _method(AdamW(beta1=beta1, beta2=beta2, decay=decay, eps=eps))


@checked
def fedadamw(
    gamma: Gamma = 0.5,
    second_moment: Annotated[
        Literal["block", "whole"],
        Doc("Begin with the cohort's second moment of each parameter, or of each number."),
    ] = "block",
    beta1: First = 0.9,
    beta2: Second = 0.999,
    decay: Decay = 0.01,
    eps: Eps = 1e-8,
    first_count: Annotated[
        Literal["visit", "run"],
        Doc("Steps by which the first moment is corrected: of the visit, or of all rounds."),
    ] = "visit",
    alignment: Annotated[
        Literal["added", "mixed"],
        Doc("Add gamma Delta to the client's direction, or mix it with 1 - gamma of that."),
    ] = "added",
) -> Algorithm:
    r"""FedAdamW: AdamW with the cohort's second moment and its last move (Liu et al., AAAI 2026).

    Clients step along m / (sqrt(s) + eps) + decay w - gamma / K Delta; Delta is the last round's
    mean(u_i - w^t) / eta. s begins as the cohort's mean, and m at 0. The authors' rate is
    0.0003.

    Formula:
        start: m = 0, \quad s = \overline{s}
        step: m \gets \beta_1 m + (1 - \beta_1)\, g(w), \quad s \gets \beta_2 s + (1 - \beta_2)\,
            g(w)^2
        then: w \gets w - \eta\, \Bigl[ \frac{\hat{m}}{\sqrt{\hat{s}} + \epsilon} + \lambda w -
            \frac{\gamma}{K} \Delta \Bigr], \quad \hat{m} = \frac{m}{1 - \beta_1^k}, \quad \hat{s} =
            \frac{s}{1 - \beta_2^{tK + k}}, \quad \lambda = \mathrm{decay}
        server: w^{t+1} = w^t + \frac{1}{M} \sum_{i \in S} (u_i - w^t), \quad \Delta = \frac{1}{M}
            \sum_{i \in S} \frac{u_i - w^t}{\eta}
        then: \overline{s} = \frac{1}{M} \sum_{i \in S} \text{mean of each parameter of } s_i

    References:
        Liu et al., AAAI 2026, https://arxiv.org/abs/2510.27486

    Released code:
        The vision script averages the whole second moment and corrects m by the steps of all rounds
        (`second_moment="whole", first_count="run"`). The language script averages one number a
        parameter, corrects likewise, and mixes: (1 - gamma) of AdamW, and of the last round's mean
        move, divided by no learning rate (`first_count="run", alignment="mixed"`).
    """
    mixed = alignment == "mixed"
    adam = AdamW(
        second_moment,
        beta1,
        beta2,
        decay=decay / (1 - gamma) if mixed and gamma < 1 else decay,
        eps=eps,
        released=first_count == "run",
    )
    return _method(adam, Alignment(gamma, 1 - gamma if mixed else 1.0, current=mixed))


@checked
def local_muon(beta: Momentum = 0.95, gain: Gain = 1.0, decay: Decay = 0.01) -> Algorithm:
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
        server: w^{t+1} = w^t + \frac{1}{M} \sum_{i \in S} (u_i - w^t)

    References:
        Jordan et al., 2024, https://kellerjordan.github.io/posts/muon
        Liu et al., 2025, https://arxiv.org/abs/2510.27403
    """
    return _method(Muon(beta=beta, gain=gain, decay=decay))


@checked
def fedmuon(
    gamma: Gamma = 0.5,
    beta: Momentum = 0.98,
    gain: Gain = 0.5,
    decay: Decay = 0.01,
    rank: Annotated[
        NonNegativeFloat,
        Doc("Rank of the momentum that is sent, as a share of that of equal size; 0 is all."),
    ] = 0.0,
) -> Algorithm:
    r"""FedMuon by alignment: Muon with the cohort's momentum and its last move (Liu et al., 2025).

    Clients step along (1 - gamma) Muon(g) - gamma / K Delta; Delta is the last round's
    mean(u_i - w^t) / eta. Muon's momentum begins as the cohort's mean. The other FedMuon is
    `fedmuon_lmo`.

    Formula:
        start: B = \overline{B}
        step: B \gets \beta B + (1 - \beta)\, g(w), \quad w \gets w - \eta\, \Bigl[ (1 - \gamma)\, d
            - \frac{\gamma}{K} \Delta \Bigr]
        with: d = \mathrm{gain}\, \bigl[\, r\, \mathrm{NS}\bigl(\beta B + (1 - \beta)\, g(w)\bigr) +
            \lambda w \,\bigr], \quad \mathrm{NS}(U \Sigma V^\top) \approx U V^\top, \quad r =
            \sqrt{\max(1, \text{rows} / \text{columns})}, \quad \lambda = \mathrm{decay}
        vectors: d \text{ is the direction of AdamW}
        server: w^{t+1} = w^t + \frac{1}{M} \sum_{i \in S} (u_i - w^t), \quad \Delta = \frac{1}{M}
            \sum_{i \in S} \frac{u_i - w^t}{\eta}, \quad \overline{B} = \frac{1}{M} \sum_{i \in S}
            B_i

    Args:
        gain: 0.5 for ResNet-18 at --lr 0.03, 10 for ViT-Tiny at 0.0003 (authors' values).

    References:
        Liu et al., 2025, https://arxiv.org/abs/2510.27403

    Released code:
        Newton and Schulz in bfloat16; here in the model's dtype. A kernel's step has no factor of
        its shape; here it counts as a matrix of one row a channel, as Newton and Schulz see it.
    """
    return _method(Muon("whole", beta, gain, decay, rank), Alignment(gamma))


@checked
def fedmuon_lmo(
    alpha: Annotated[UnitInterval, Doc("Weight of the gradient in the momentum.")] = 0.9,
    iterations: Annotated[
        NonNegativeInt | None,
        Doc("Of Newton and Schulz; 0 steps along the matrix by its norm, none is exact."),
    ] = 5,
    correct: Annotated[bool, Doc("Correct the momentum; if not, this is Local Muon.")] = True,
    server: Annotated[
        Literal["damped", "mean"],
        Doc("Move by M / N of the cohort's mean move (paper), or by the mean."),
    ] = "damped",
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
        server: w^{t+1} = w^t + \frac{1}{N} \sum_{i \in S} (u_i - w^t), \quad C = \frac{1}{N}
            \sum_{i=1}^{N} M_i

    References:
        Takezawa et al., ICLR 2026, https://arxiv.org/abs/2509.26337

    Released code:
        There is none of the authors. A reproduction takes the mean in its report (`server="mean"`),
        and the exact polar factor as a default (`iterations=None`). There it has null directions of
        full length, which are rounding noise; here they are left out.
    """
    kind = CorrectedLMO if correct else LMO
    return _method(kind(alpha, iterations, damp=server == "damped"))


@checked
def fedpac_muon(
    gamma: Gamma = 0.5, beta: Momentum = 0.95, gain: Gain = 0.5, decay: Decay = 0.01
) -> Algorithm:
    r"""FedPAC with Muon: an averaged preconditioner and the last move (Liu et al., ICML 2026).

    As `fedmuon`, with a momentum of 0.95. The authors' learning rate is 0.03.

    Formula:
        start: B = \overline{B}
        step: B \gets \beta B + (1 - \beta)\, g(w), \quad w \gets w - \eta\, \Bigl[ (1 - \gamma)\, d
            - \frac{\gamma}{K} \Delta \Bigr]
        with: d = \mathrm{gain}\, \bigl[\, r\, \mathrm{NS}\bigl(\beta B + (1 - \beta)\, g(w)\bigr) +
            \lambda w \,\bigr], \quad \mathrm{NS}(U \Sigma V^\top) \approx U V^\top, \quad r =
            \sqrt{\max(1, \text{rows} / \text{columns})}, \quad \lambda = \mathrm{decay}
        vectors: d \text{ is the direction of AdamW}
        server: w^{t+1} = w^t + \frac{1}{M} \sum_{i \in S} (u_i - w^t), \quad \Delta = \frac{1}{M}
            \sum_{i \in S} \frac{u_i - w^t}{\eta}, \quad \overline{B} = \frac{1}{M} \sum_{i \in S}
            B_i

    References:
        Liu et al., ICML 2026, https://arxiv.org/abs/2602.19271

    Released code:
        gamma is 0.85 in the recommended commands.
    """
    return fedmuon(gamma, beta, gain, decay)


@checked
def fedpac_sophia(
    gamma: Gamma = 0.5,
    rho: Annotated[PositiveFloat, Doc("Scale of the curvature: rho times the batch size.")] = 10.0,
    beta1: First = 0.9,
    beta2: Second = 0.99,
    decay: Decay = 0.1,
    curvature: Annotated[
        bool, Doc("Keep a mean of squared gradients; if not, step by signs.")
    ] = True,
) -> Algorithm:
    r"""FedPAC with Sophia: averaged curvature and the last move (Liu et al., ICML 2026).

    Clients step along (1 - gamma) (sign(m) min(1, |m| / (rho h)) + decay w) - gamma / K Delta, with
    Delta as in `fedadamw`. h, the mean of g^2, begins as the cohort's; m at 0. The authors' rate is
    0.0003.

    Formula:
        start: m = 0, \quad h = \overline{h}
        step: h \gets \beta_2 h + (1 - \beta_2)\, g(w)^2, \quad m \gets \beta_1 m + (1 - \beta_1)\,
            g(w)
        then: w \gets w - \eta\, \Bigl[ (1 - \gamma) \Bigl( \operatorname{sign}(m)\, \min\bigl(1,
            \tfrac{|m|}{\rho h}\bigr) + \lambda w \Bigr) - \frac{\gamma}{K} \Delta \Bigr], \quad
            \lambda = \mathrm{decay}
        server: w^{t+1} = w^t + \frac{1}{M} \sum_{i \in S} (u_i - w^t), \quad \Delta = \frac{1}{M}
            \sum_{i \in S} \frac{u_i - w^t}{\eta}, \quad \overline{h} = \frac{1}{M} \sum_{i \in S}
            h_i

    References:
        Liu et al., ICML 2026, https://arxiv.org/abs/2602.19271
        Liu et al., ICLR 2024 (Sophia), https://arxiv.org/abs/2305.14342

    Released code:
        It never computes h, so it steps along signs: `curvature=False`.
    """
    sophia = Sophia("whole", beta1, beta2, rho, decay, curvature)
    return _method(sophia, Alignment(gamma))


@checked
def diloco(
    beta1: First = 0.9,
    beta2: Second = 0.95,
    decay: Decay = 0.1,
    eps: Eps = 1e-8,
    momentum: Annotated[BelowOneFloat, Doc("Nesterov's momentum of the server.")] = 0.9,
) -> Algorithm:
    r"""DiLoCo: AdamW on the clients, Nesterov's momentum on the server (Douillard et al., 2023).

    Clients step by AdamW and keep its moments. The server steps along the mean move with momentum
    and a learning rate of 0.7 (`--server-lr`). AdamW's own is near
    0.001.

    Formula:
        start: m, s, k \text{ as at the end of the last visit}
        step: m \gets \beta_1 m + (1 - \beta_1)\, g(w), \quad s \gets \beta_2 s + (1 - \beta_2)\,
            g(w)^2
        then: w \gets w - \eta\, \Bigl[ \frac{\hat{m}}{\sqrt{\hat{s}} + \epsilon} + \lambda w
            \Bigr], \quad \hat{m} = \frac{m}{1 - \beta_1^k}, \quad \hat{s} = \frac{s}{1 -
            \beta_2^k}, \quad \lambda = \mathrm{decay}
        server: b \gets \mu\, b + \delta, \quad w^{t+1} = w^t + \eta_s\, (\delta + \mu\, b), \quad
            \delta = \frac{1}{M} \sum_{i \in S} (u_i - w^t), \quad \mu = \mathrm{momentum}

    References:
        Douillard et al., 2023, https://arxiv.org/abs/2311.08105
    """
    adam = AdamW(beta1=beta1, beta2=beta2, decay=decay, eps=eps, kept=True)
    server = partial(SGD, lr=0.7, momentum=momentum, nesterov=momentum > 0)
    return _method(adam, server=server)
