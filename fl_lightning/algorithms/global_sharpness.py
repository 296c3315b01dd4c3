"""Sharpness-aware methods with global perturbations."""

from typing import Annotated, Literal

from typing_extensions import Doc

from fl_lightning.algorithms import shared_options as opt
from fl_lightning.core.algorithm import Algorithm
from fl_lightning.core.constraints import NonNegativeFloat, checked
from fl_lightning.core.term import Term
from fl_lightning.terms import LESAM, SMOO, TOGA, ControlVariate, LastRound, Neighbor, released


@checked
def fedsmoo(
    rho: opt.Rho = 0.1,
    lam: opt.Lam = 0.1,
    consensus: Annotated[
        Literal["paper", "released"], Doc("Report mu_i minus the last perturbation, or mu_i alone.")
    ] = "paper",
    prox_clip: opt.ProxClip = "whole",
    pull: opt.Pull = "squared",
) -> Algorithm:
    r"""FedSMOO: FedDyn with perturbations that agree on a common one (Sun et al., ICML 2023).

    Clients step along g(w + e) + lam (h_i + w - w^t), with e = rho unit(g - mu_i - s) and
    mu_i <- mu_i + e - s; s is the common perturbation.

    Formula:
        step: w \gets w - \eta\, [\, g(w + e) + \lambda\, (h_i + w - w^t) \,]
        with: e = \rho\, \unit{g(w) - \mu_i - s}, \quad \mu_i \gets \mu_i + e - s \text{ in each
            step}
        end: h_i \gets h_i + u_i - w^t
        server: w^{t+1} = \mean_S u_i + h, \quad h = \mean_N h_i, \quad s = \rho\, \unit{\sum_{i \in
            S} (\mu_i - e_i)}

    References:
        Sun et al., ICML 2023, https://arxiv.org/abs/2305.11584

    Released code:
        It reports mu_i (`consensus`), and clips only the half h_i - w^t (`prox_clip="split"`).
        FedGMT's repository forgets the square of the pull (`pull="norm"`), and to clear the last
        step's gradient before the ascent, which is not offered.
    """
    smoo = {"paper": SMOO, "released": released.ReleasedSMOO}[consensus]
    return Algorithm(smoo(rho), *opt.dynamic(lam, prox_clip=prox_clip, pull=pull))


@checked
def fedlesam(
    rho: opt.Rho = 0.01,
    reference: opt.Reference = "last_active",
    first_participation: opt.First = "init",
) -> Algorithm:
    r"""FedLESAM: perturbation along an estimate of the global direction (Fan et al., ICML 2024).

    Clients step along g(w + rho unit(o_i - w^t)), o_i being the model received at the last visit.

    Formula:
        step: w \gets w - \eta\, g(w + e), \quad e = \rho\, \unit{o_i - w^t}

    References:
        Fan et al., ICML 2024, https://arxiv.org/abs/2405.18890

    Released code:
        It shifts each tensor by one coordinate of w^t - w^(t-1), an indexing error:
        `reference="as_released"`; its intent is `"last_round"`.
    """
    perturbations: dict[str, Term] = {
        "last_active": LESAM(rho, first_participation == "skip"),
        "last_round": LastRound(rho),
        "as_released": released.ReleasedLastRound(rho, eps=1e-7),
    }
    return Algorithm(perturbations[reference])


@checked
def fedlesam_s(
    rho: opt.Rho = 0.1,
    reference: opt.Reference = "last_active",
    first_participation: opt.First = "init",
    correction: Annotated[NonNegativeFloat, Doc("Coefficient of c - c_i.")] = 1.0,
) -> Algorithm:
    r"""FedLESAM-S: FedLESAM's perturbation on SCAFFOLD (Fan et al., ICML 2024).

    Clients step along g(w + rho unit(o_i - w^t)) + c - c_i.

    Formula:
        step: w \gets w - \eta\, [\, g(w + e) + c - c_i \,], \quad e = \rho\, \unit{o_i - w^t}
        end: c_i \gets c_i - c + \frac{w^t - u_i}{K \eta}
        server: w^{t+1} = w^t + \mean_S (u_i - w^t), \quad c = \mean_N c_i

    References:
        Fan et al., ICML 2024, https://arxiv.org/abs/2405.18890

    Released code:
        Its coefficient of c - c_i is 0.1 (`correction`); for the perturbation see `fedlesam`.
    """
    variate = ControlVariate() if correction == 1 else released.ReleasedControlVariate(correction)
    return Algorithm(*fedlesam(rho, reference, first_participation).terms, variate)


@checked
def fedlesam_d(
    rho: opt.Rho = 0.1,
    reference: opt.Reference = "last_active",
    first_participation: opt.First = "init",
    lam: opt.Lam = 0.1,
    prox_clip: opt.ProxClip = "whole",
    pull: opt.Pull = "squared",
) -> Algorithm:
    r"""FedLESAM-D: FedLESAM's perturbation on FedDyn (Fan et al., ICML 2024).

    Clients step along g(w + rho unit(o_i - w^t)) + lam (h_i + w - w^t).

    Formula:
        step: w \gets w - \eta\, [\, g(w + e) + \lambda\, (h_i + w - w^t) \,], \quad e = \rho\,
            \unit{o_i - w^t}
        end: h_i \gets h_i + u_i - w^t
        server: w^{t+1} = \mean_S u_i + h, \quad h = \mean_N h_i

    References:
        Fan et al., ICML 2024, https://arxiv.org/abs/2405.18890

    Released code:
        It clips only the half h_i - w^t (`prox_clip="split"`); for the perturbation see `fedlesam`.
        FedGMT's repository forgets the square of the pull (`pull="norm"`), and gives each tensor
        the first entries of w^t - w^(t-1), an indexing error that is not offered.
    """
    lesam = fedlesam(rho, reference, first_participation).terms
    return Algorithm(*lesam, *opt.dynamic(lam, prox_clip=prox_clip, pull=pull))


@checked
def fedtoga(
    rho: opt.Rho = 0.1,
    kappa: opt.Kappa = 1.0,
    beta: opt.TrendBeta = 0.8,
    lam: opt.Lam = 0.1,
    perturbation: Literal["local", "neighbor", "fusion", "released"] = "local",
    carry: opt.Carry = False,
    delta: opt.TrendScale = "gradient",
    dual: Literal["all", "active"] = "all",
    prox_clip: opt.ProxClip = "whole",
) -> Algorithm:
    r"""FedTOGA: perturbation and dual corrected by the global trend (arXiv 2408.14144).

    Clients step along g(w + rho unit(g + kappa Delta)) + beta Delta + lam (h_i + w - w^t), Delta
    being the last mean of w^t - u_i, over a divisor (`delta`). kappa = 0 drops the SAM correction;
    kappa = beta = 0 leaves SAM with FedDyn's regularizer (the ablation rows).

    beta Delta acts as server momentum beta K eta / divisor, which a run prints: at learning rate
    0.1 and beta 0.8 it is 0.08 over K steps and 0.8 over K eta. Algorithm 1 divides by K alone; the
    text names FedCM as the source of Delta, which divides by K eta. The paper's ablation has +1.40
    and +3.06 points from beta; benchmarks/reproduced.md has ours for each divisor.

    Formula:
        step: w \gets w - \eta\, [\, g(w + e) + \beta \Delta + \lambda\, (h_i + w - w^t) \,], \quad
            e = \rho\, \unit{g(w) + \kappa \Delta}
        end: h_i \gets h_i + u_i - w^t
        server: w^{t+1} = \mean_S u_i + h, \quad h = \mean_N h_i, \quad \Delta = \mean_S \frac{w^t -
            u_i}{K \eta}

    Args:
        beta: 0.8 or 0.9.
        lam: 1/alpha in the paper's formulas; the paper prints alpha = 0.1 for the multiplier.
        perturbation: Ascend along the own gradient, the previous perturbed one (one pass), their
            sum, or as third-party code does.
        delta: Over steps beta has little effect.
        dual: The server adds the mean of all duals, which has the fixed point of the paper's
            appendix, or, as in Algorithm 1, the sum of the cohorts' mean moves.

    References:
        Li et al., 2024, https://arxiv.org/abs/2408.14144

    Released code:
        None of the authors. A third party's, https://github.com/FL-boop-blip/RFL-NLCP, divides
        Delta by K steps and not by eta (`delta="steps"`), adds the mean dual of all clients, and
        clips only the half h_i - w^t of the pull (`prox_clip="split"`). Its ascent adds to g the
        whole previous direction (`perturbation="fusion"` adds the previous gradient) and, in the
        place of Delta, h_i - w^t: `perturbation="released"`, which always splits the pull.
    """
    participation = {"all": None, "active": 1.0}[dual]
    if perturbation == "released":
        scale = opt.TREND_SCALES[delta]
        third_party = released.ReleasedTOGA(rho, kappa, beta, scale, lam, participation)
        return Algorithm(third_party, released.UnclippedPull(lam))
    trend: Term = TOGA(rho, kappa, beta, opt.TREND_SCALES[delta])
    if perturbation != "local":
        trend = Neighbor(trend, fusion=perturbation == "fusion", carry=carry)
    regularizer = opt.dynamic(lam, prox_clip=prox_clip, participation=participation)
    return Algorithm(trend, *regularizer)
