"""Flatness of the global model, sought along its path."""

from typing import Annotated, Literal

from typing_extensions import Doc

from fl_lightning import terms
from fl_lightning.algorithms import shared_options as opt
from fl_lightning.core.algorithm import Algorithm
from fl_lightning.core.constraints import (
    BelowOneFloat,
    NonNegativeFloat,
    PositiveFloat,
    PositiveFraction,
    PositiveInt,
    UnitInterval,
    checked,
)
from fl_lightning.core.curves import LinearRate
from fl_lightning.core.weighting import by_size
from fl_lightning.terms.released import ReleasedStart, ReleasedStartDual, ReleasedWMSAM

Begin = Annotated[NonNegativeFloat, Doc("Factor on the learning rate at the beginning of a visit.")]
End = Annotated[NonNegativeFloat, Doc("Factor on the learning rate at its end.")]
Penalty = Annotated[
    PositiveFloat, Doc("Inverse multiplier of the dual: larger ones bind clients less.")
]


@checked
def fedwmsam(
    rho: opt.Rho = 0.01,
    alpha: Annotated[BelowOneFloat, Doc("Weight of the own gradient in the first round.")] = 0.1,
    decay: Annotated[NonNegativeFloat, Doc("Factor of the momentum.")] = 1.0,
    prediction: Literal["momentum", "steps"] = "momentum",
    side: Literal["away", "toward"] = "away",
    direction: Literal["unit", "as_released"] = "unit",
) -> Algorithm:
    r"""FedWMSAM: momentum for both the step and its perturbation (Li et al., NeurIPS 2025).

    Clients step along al g(w - rho unit(f)) + (1 - al) m_i in one pass, where f leads to the
    predicted global model w^t + k m_i, m_i = m + al / (1 - al) (c - c_i) and m is the cohort's last
    mean gradient. al grows with the angles between the clients' gradients and m.

    Formula:
        step: w \gets w - \eta\, [\, \alpha\, g(w - e) + (1 - \alpha)\, m_i \,], \quad e = \rho\,
            \unit{f}, \quad f = w^t + k\, m_i - w
        with: m_i = m + \frac{\alpha}{1 - \alpha}\, (c - c_i), \quad g_i = \frac{w^t - u_i}{K \eta}
        end: c_i \gets c_i - c + g_i
        server: w^{t+1} = w^t + \mean_S (u_i - w^t)
        then: a = \mean_S (1 - \cos(g_i, m)), \quad \alpha \gets 0.99\, \alpha + 0.01\, \min(0.9,
            \max(0.1, a)), \quad m \gets \mean_S g_i, \quad c \gets c + \frac{M}{N}\, (m - c)

    Args:
        rho: The authors recommend about 0.01; from 0.1 on it costs accuracy.
        prediction: The predicted model moves by m_i a step, or by -eta m_i as plain steps would.
        side: Take gradients away from the predicted model (released code), or toward it.
        direction: The unit vector to the predicted model, or what an indexing error makes of it.

    References:
        Li et al., NeurIPS 2025, https://arxiv.org/abs/2511.22080

    Released code:
        It indexes f by coordinates where it means tensors (`direction="as_released"`), as
        FedLESAM's does, and multiplies m by the learning rate's decay (`decay=0.998`). The paper's
        formula adds rho unit(f) (`side="toward"`), where the momentum is a move: m points uphill
        here and in the code, so that both take the gradient downhill.
    """
    term = {"unit": terms.WMSAM, "as_released": ReleasedWMSAM}[direction]
    return Algorithm(term(rho, alpha, decay, prediction == "steps", side == "toward"))


@checked
def fedgmt(
    gamma: Annotated[NonNegativeFloat, Doc("Strength of the distillation.")] = 1.0,
    alpha: Annotated[UnitInterval, Doc("Weight of the past in the average model.")] = 0.95,
    tau: opt.Tau = 3.0,
    beta: Penalty = 10.0,
    dual: opt.Dual = "all",
) -> Algorithm:
    r"""FedGMT: clients learn from the average of past global models (Li et al., ICML 2025).

    Clients step along the gradient of the loss plus gamma tau^2 KL(e || w) at temperature tau, plus
    h_i / beta, where e is the moving average of the global models and h_i FedDyn's dual, without a
    proximal term: sharpness of the global model for one gradient a step.

    Formula:
        step: w \gets w - \eta\, \bigl[ \nabla \bigl( \ell(w) + \gamma\, \tau^2\,
            \mathrm{KL}_\tau(e^t \,\|\, w) \bigr) + h_i / \beta \bigr]
        end: h_i \gets h_i + u_i - w^t
        server: w^{t+1} = \sum_{i \in S} p_i\, u_i + h, \quad h = \mean_N h_i, \quad e^t = \alpha\,
            e^{t-1} + (1 - \alpha)\, w^t

    Args:
        gamma: The authors try 0.5, 1 and 2.
        alpha: The authors try 0.95, 0.995 and 0.998.

    References:
        Li et al., ICML 2025, https://openreview.net/forum?id=80mK2Mqaph

    Released code:
        It adds the mean dual of all clients. A third party's summary of the paper averages the
        cohort's amended models (`dual="active"`).
    """
    linear = {"all": terms.LinearDual, "active": terms.CohortLinearDual}[dual]
    return Algorithm(linear(1 / beta), terms.TrajectoryTeacher(gamma, alpha, tau), weight=by_size)


@checked
def fedgloss(
    rho: opt.Rho = 0.15,
    local_rho: Annotated[NonNegativeFloat, Doc("Radius at the clients; 0 is plain SGD.")] = 0.15,
    beta: Penalty = 10.0,
    server_dual: Literal["paper", "released"] = "paper",
) -> Algorithm:
    r"""FedGloSS: sharpness-aware minimization on the server (Caldarola et al., CVPR 2025).

    Clients start at w^t + rho unit(D), D being the last mean of start - u_i, and step along
    g(w + local_rho unit(g)) + (h_i + w - start) / beta. The server moves w^t by the mean move from
    the start and the mean h of all h_i.

    Formula:
        start: y = w^t + \rho\, \unit{D}
        step: w \gets w - \eta\, \Bigl[ g(w + e) + \tfrac{1}{\beta} (h_i + w - y) \Bigr], \quad e =
            \rho_l\, \unit{g(w)}
        end: h_i \gets h_i + u_i - y
        server: D = \sum_{i \in S} p_i\, (y - u_i), \quad w^{t+1} = w^t - D + h, \quad h = \mean_N
            h_i

    Args:
        rho: The authors' CIFAR-100 0.01.
        local_rho: The authors' CIFAR-100 0.2.
        beta: The authors' CIFAR-100 100.
        server_dual: Mean of all duals, or that over the cohort's size.

    References:
        Caldarola et al., CVPR 2025, https://arxiv.org/abs/2412.03752

    Released code:
        Its server divides the dual by the cohort's size (`server_dual="released"`). The server's
        learning rate scales D alone; here it scales the dual, too. The radii grow over the first
        rounds, as with `--algorithm.rho "linear(0.001, 0.15, 2000)"`; by mistake not the server's.
    """
    dual = {"paper": terms.StartDual, "released": ReleasedStartDual}[server_dual](1 / beta)
    local = () if local_rho == 0 else (terms.SAM(local_rho),)
    return Algorithm(terms.ServerSAM(rho), *local, dual, weight=by_size)


@checked
def fedgf(
    rho: opt.Rho = 0.05,
    global_rho: NonNegativeFloat | None = None,
    threshold: NonNegativeFloat = 0.2,
    window: Annotated[PositiveInt, Doc("Rounds over which far ones are counted.")] = 30,
) -> Algorithm:
    r"""FedGF: gradients between a local and a global perturbed model (Lee and Yoon, ICML 2024).

    Clients step along g(c w' + (1 - c) (w + rho unit(g))), where w' is w^t perturbed against the
    last move of the server. c is the share of the last rounds in which the cohort's mean
    |u_i - w^t| was above the threshold. A run writes c as term/c, and that mean, by the clients'
    weights, as client/distance.

    Formula:
        step: w \gets w - \eta\, g\bigl( c\, w' + (1 - c)\, (w + e) \bigr), \quad e = \rho\,
            \unit{g(w)}
        with: w' = w^t - \rho_g\, \unit{w^t - w^{t-1}}
        server: w^{t+1} = w^t + \sum_{i \in S} p_i\, (u_i - w^t)
        then: c = \text{share of the last } W \text{ rounds with } \mean_S \|u_i - w^t\| > T_D

    Args:
        rho: The authors try 0.02, 0.05 and 0.1.
        global_rho: Radius around the global model; none is rho.
        threshold: Distance of a cohort from the global model that counts as far. T_D, which the
            authors' script does not set.

    References:
        Lee and Yoon, ICML 2024, https://proceedings.mlr.press/v235/lee24aa.html

    Released code:
        Its script passes c_o = 0.2 or 0.3, which the program refuses; here it is the threshold.
    """
    return Algorithm(terms.GF(rho, global_rho, threshold, window), weight=by_size)


@checked
def fednsam(
    rho: opt.Rho = 0.05,
    gamma: opt.Momentum = 0.85,
    ascent: Literal["local", "momentum"] = "local",
    memory: Literal["accumulated", "as_released"] = "accumulated",
) -> Algorithm:
    r"""FedNSAM: sharpness-aware steps ahead along the server's momentum (arXiv 2602.23827).

    Clients start at w^t + gamma m and step along g(w + rho unit(g)); the server moves by
    m <- gamma m + D, D being the mean of u_i - start. With `ascent="momentum"` they start at w^t
    and step along g(w + gamma m - rho unit(m)), in the first step along g(w).

    Formula:
        start: y = w^t + \gamma\, m
        step: w \gets w - \eta\, g(w + e), \quad e = \rho\, \unit{g(w)}
        server: m \gets \gamma\, m + \mean_S (u_i - y), \quad w^{t+1} = w^t + m

    Args:
        rho: The released code's command asks for 0.01, but 0.05 acts.
        ascent: Perturb along the own gradient, or along the server's momentum in one pass.
        memory: The momentum gamma m + D, or released code's (1 + gamma) D.

    References:
        Liu et al., 2026, https://arxiv.org/abs/2602.23827

    Released code:
        It multiplies gamma by the new mean where it means the momentum (`memory="as_released"`). A
        class that nothing imports has `ascent="momentum"`, which the abstract describes.
    """
    if ascent == "momentum":
        return Algorithm(terms.NesterovAscent(gamma, rho))
    start = {"accumulated": terms.AcceleratedStart, "as_released": ReleasedStart}[memory]
    return Algorithm(start(gamma, 0.0), terms.SAM(rho))


@checked
def fedswa(begin: Begin = 2.0, end: End = 0.0) -> Algorithm:
    r"""FedSWA: weight averaging after rates that fall within a visit (Liu et al., ICML 2025).

    Clients step along g(w) at eta (begin + (end - begin) k / K) in step k of K.

    Formula:
        step: w \gets w - \eta_k\, g(w), \quad \eta_k = \eta\, \bigl( \mathrm{begin} + (\mathrm{end}
            - \mathrm{begin})\, \tfrac{k}{K} \bigr)

    References:
        Liu et al., ICML 2025, https://arxiv.org/abs/2507.20016

    Released code:
        The defaults. In a summary of the paper the rate falls from eta (`begin=1`), and the server
        averages its models over the rounds, which `--server-lr` below 1 does; the code has 1.
    """
    return Algorithm(rate=LinearRate(begin, end))


@checked
def fedmoswa(
    gamma: Annotated[PositiveFraction, Doc("Weight of the cohort in the common variate.")] = 0.4,
    begin: Begin = 1.0,
    end: End = 0.0,
) -> Algorithm:
    r"""FedMoSWA: FedSWA with control variates, the common one a moving mean (Liu et al., 2025).

    Clients step along g(w) + c - c_i at eta (begin + (end - begin) k / K) in step k of K; then
    c_i <- c_i - c + (w^t - u_i) / (sum of the rates), and c <- c + gamma mean_S(c_i - c). In the
    first round c is mean_S(c_i).

    Formula:
        step: w \gets w - \eta_k\, [\, g(w) + c - c_i \,], \quad \eta_k = \eta\, \bigl(
            \mathrm{begin} + (\mathrm{end} - \mathrm{begin})\, \tfrac{k}{K} \bigr)
        end: c_i \gets c_i - c + \frac{w^t - u_i}{\sum_k \eta_k}
        server: w^{t+1} = w^t + \mean_S (u_i - w^t), \quad c \gets c + \gamma\, \mean_S (c_i - c)

    References:
        Liu et al., ICML 2025, https://arxiv.org/abs/2507.20016

    Released code:
        Its command trains at a constant rate, `end=1`, and keeps c_i by the place in the cohort, a
        mistake that is not offered. A function that it never calls has a falling rate, with
        K eta / 2 for the sum of the rates. Both clip g; `--clip-norm` clips the whole direction.
    """
    return Algorithm(terms.MovingVariate(gamma), rate=LinearRate(begin, end))
