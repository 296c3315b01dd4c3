"""Adaptive client optimizers."""

from typing import Annotated, Literal

from typing_extensions import Doc

from fl_lightning.algorithms import shared_options as opt
from fl_lightning.core.algorithm import Algorithm
from fl_lightning.core.constraints import BelowOneFloat, NonNegativeFloat, PositiveFloat, checked
from fl_lightning.terms import AdamW, Alignment, ServerMomentum, Sophia

Eps = Annotated[NonNegativeFloat, Doc("Number added to the root of the second moment.")]


@checked
def local_adamw(
    beta1: opt.Beta1 = 0.9, beta2: opt.Beta2 = 0.999, decay: opt.Decay = 0.01, eps: Eps = 1e-8
) -> Algorithm:
    r"""Local AdamW: clients step by AdamW, whose moments begin at 0 in each visit.

    Clients step along m / (sqrt(s) + eps) + decay w, with corrected moments m of g and s of g^2.
    Its learning rate is near 0.001.

    Formula:
        start: m = s = 0
        step: m \gets \beta_1 m + (1 - \beta_1)\, g(w), \quad s \gets \beta_2 s + (1 - \beta_2)\,
            g(w)^2
        then: w \gets w - \eta\, \Bigl[ \frac{\hat{m}}{\sqrt{\hat{s}} + \epsilon} + \lambda w
            \Bigr], \quad \hat{m} = \frac{m}{1 - \beta_1^{k+1}}, \quad \hat{s} = \frac{s}{1 -
            \beta_2^{k+1}}, \quad \lambda = \mathrm{decay}

    References:
        Loshchilov and Hutter, ICLR 2019, https://arxiv.org/abs/1711.05101
    """
    return opt.own_optimizer(AdamW(beta1=beta1, beta2=beta2, decay=decay, eps=eps))


@checked
def fedadamw(
    gamma: opt.Gamma = 0.5,
    second_moment: Literal["block", "whole"] = "block",
    beta1: opt.Beta1 = 0.9,
    beta2: opt.Beta2 = 0.999,
    decay: opt.Decay = 0.01,
    eps: Eps = 1e-8,
    first_count: Literal["visit", "run"] = "visit",
    alignment: Literal["added", "mixed"] = "added",
) -> Algorithm:
    r"""FedAdamW: AdamW with the cohort's second moment and its last move (Liu et al., AAAI 2026).

    Clients step along m / (sqrt(s) + eps) + decay w - gamma / K Delta; Delta is the last round's
    mean(u_i - w^t) / eta. s begins as the cohort's mean, m at 0. The authors' rate is 0.0003.

    Formula:
        start: m = 0, \quad s = \overline{s}
        step: m \gets \beta_1 m + (1 - \beta_1)\, g(w), \quad s \gets \beta_2 s + (1 - \beta_2)\,
            g(w)^2
        then: w \gets w - \eta\, \Bigl[ \frac{\hat{m}}{\sqrt{\hat{s}} + \epsilon} + \lambda w -
            \frac{\gamma}{K} \Delta \Bigr], \quad \hat{m} = \frac{m}{1 - \beta_1^{k+1}}, \quad
            \hat{s} = \frac{s}{1 - \beta_2^{tK+k+1}}, \quad \lambda = \mathrm{decay}
        server: w^{t+1} = w^t + \mean_S (u_i - w^t), \quad \Delta = \mean_S \frac{u_i - w^t}{\eta}
        then: \overline{s} = \mean_S \text{mean of each parameter of } s_i

    Args:
        second_moment: Begin with the cohort's second moment of each parameter, or of each number.
        first_count: Steps by which the first moment is corrected: of the visit, or of all rounds.
        alignment: Add gamma Delta to the client's direction, or mix it with 1 - gamma of that.

    References:
        Liu et al., AAAI 2026, https://arxiv.org/abs/2510.27486

    Released code:
        The vision script averages the whole second moment and corrects m by the steps of all rounds
        (`second_moment="whole", first_count="run"`). The language script averages one number a
        parameter, corrects likewise, and mixes: (1 - gamma) of AdamW, and of the last round's mean
        move, divided by no learning rate (`first_count="run", alignment="mixed"`).
    """
    mixed = alignment == "mixed"
    undamped = decay / (1 - gamma) if mixed and gamma < 1 else decay
    adam = AdamW(second_moment, beta1, beta2, undamped, eps, released=first_count == "run")
    return opt.own_optimizer(adam, Alignment(gamma, 1 - gamma if mixed else 1.0, current=mixed))


@checked
def fedpac_sophia(
    gamma: opt.Gamma = 0.5,
    rho: Annotated[PositiveFloat, Doc("Scale of the curvature: rho times the batch size.")] = 10.0,
    beta1: opt.Beta1 = 0.9,
    beta2: opt.Beta2 = 0.99,
    decay: opt.Decay = 0.1,
    curvature: Annotated[
        bool, Doc("Keep a mean of squared gradients; if not, step by signs.")
    ] = True,
) -> Algorithm:
    r"""FedPAC with Sophia: averaged curvature and the last move (Liu et al., ICML 2026).

    Clients step along (1 - gamma) (sign(m) min(1, |m| / (rho h)) + decay w) - gamma / K Delta, with
    Delta as in `fedadamw`. h, the mean of g^2, begins as the cohort's. The authors' rate is 0.0003.

    Formula:
        start: m = 0, \quad h = \overline{h}
        step: h \gets \beta_2 h + (1 - \beta_2)\, g(w)^2, \quad m \gets \beta_1 m + (1 - \beta_1)\,
            g(w)
        then: w \gets w - \eta\, \Bigl[ (1 - \gamma) \Bigl( \operatorname{sign}(m)\, \min\bigl(1,
            \tfrac{|m|}{\rho h}\bigr) + \lambda w \Bigr) - \frac{\gamma}{K} \Delta \Bigr], \quad
            \lambda = \mathrm{decay}
        server: w^{t+1} = w^t + \mean_S (u_i - w^t), \quad \Delta = \mean_S \frac{u_i - w^t}{\eta},
            \quad \overline{h} = \mean_S h_i

    References:
        Liu et al., ICML 2026, https://arxiv.org/abs/2602.19271
        Liu et al., ICLR 2024 (Sophia), https://arxiv.org/abs/2305.14342

    Released code:
        It never computes h, so it steps along signs: `curvature=False`.
    """
    sophia = Sophia("whole", beta1, beta2, rho, decay, curvature)
    return opt.own_optimizer(sophia, Alignment(gamma))


@checked
def diloco(
    beta1: opt.Beta1 = 0.9,
    beta2: opt.Beta2 = 0.95,
    decay: opt.Decay = 0.1,
    eps: Eps = 1e-8,
    momentum: Annotated[BelowOneFloat, Doc("Nesterov's momentum of the server.")] = 0.9,
) -> Algorithm:
    r"""DiLoCo: AdamW on the clients, Nesterov's momentum on the server (Douillard et al., 2023).

    Clients step by AdamW, near rate 0.001, and keep its moments. The server steps along the mean
    move with momentum and a learning rate of 0.7 (`--server-lr`).

    Formula:
        start: m, s, k \text{ as at the end of the last visit}
        step: k \gets k + 1, \quad m \gets \beta_1 m + (1 - \beta_1)\, g(w), \quad s \gets \beta_2 s
            + (1 - \beta_2)\, g(w)^2
        then: w \gets w - \eta\, \Bigl[ \frac{\hat{m}}{\sqrt{\hat{s}} + \epsilon} + \lambda w
            \Bigr], \quad \hat{m} = \frac{m}{1 - \beta_1^k}, \quad \hat{s} = \frac{s}{1 -
            \beta_2^k}, \quad \lambda = \mathrm{decay}
        server: b \gets \mu\, b + \delta, \quad w^{t+1} = w^t + \eta_s\, (\delta + \mu\, b), \quad
            \delta = \mean_S (u_i - w^t), \quad \mu = \mathrm{momentum}

    References:
        Douillard et al., 2023, https://arxiv.org/abs/2311.08105
    """
    adam = AdamW(beta1=beta1, beta2=beta2, decay=decay, eps=eps, kept=True)
    nesterov = ServerMomentum(momentum, nesterov=True)
    return opt.own_optimizer(adam, nesterov, server=opt.sgd(0.7))
