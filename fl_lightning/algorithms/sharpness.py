"""Sharpness-aware methods with local perturbations."""

from typing import Annotated, Literal

from typing_extensions import Doc

from fl_lightning.algorithms import shared_options as opt
from fl_lightning.core.algorithm import Algorithm
from fl_lightning.core.constraints import UnitInterval, checked
from fl_lightning.core.weighting import by_size
from fl_lightning.terms import ASAM, SAM, ClientMomentum, ControlVariate
from fl_lightning.terms.released import ReleasedClientMomentum


@checked
def fedsam(rho: opt.Rho = 0.01) -> Algorithm:
    r"""FedSAM: clients take sharpness-aware steps (Qu et al., ICML 2022).

    Clients step along g(w + rho g(w) / ||g(w)||).

    Formula:
        step: w \gets w - \eta\, g(w + e), \quad e = \rho\, \unit{g(w)}

    Args:
        rho: FedLESAM's and FedTOGA's tables 0.01, FedSOL's 0.1.

    References:
        Qu et al., ICML 2022, https://arxiv.org/abs/2206.02618
    """
    return Algorithm(SAM(rho))


@checked
def fedasam(rho: opt.Rho = 0.7, eta: opt.Eta = 0.2, scaled: opt.Scaled = "weights") -> Algorithm:
    r"""FedASAM: sharpness-aware steps in a ball scaled by weights (Caldarola et al., ECCV 2022).

    Clients step along g(w + rho T^2 g / ||T g||), T = |w| + eta.

    Formula:
        step: w \gets w - \eta\, g(w + e), \quad e = \rho\, \frac{T^2 g(w)}{\|T g(w)\|}
        server: w^{t+1} = w^t + \sum_{i \in S} p_i\, (u_i - w^t)
        with: T = \left| w \right| + \mathrm{eta} \text{ for weights, 1 for other parameters}

    Args:
        rho: FedSOL's tables 1.0.

    References:
        Caldarola et al., ECCV 2022, https://arxiv.org/abs/2203.11834

    Released code:
        The authors' scales weights alone; FedSOL's scales all, with eta = 0 (`scaled`, `eta`).
    """
    return Algorithm(ASAM(rho, eta, opt.SCALED[scaled]), weight=by_size)


@checked
def mofedsam(
    rho: opt.Rho = 0.1,
    alpha: opt.GradientWeight = 0.1,
    gain: Annotated[Literal["alpha", "one"], Doc("Factor of the client's own gradient.")] = "alpha",
) -> Algorithm:
    r"""MoFedSAM: FedCM with sharpness-aware gradients (Qu et al., ICML 2022).

    Clients step along alpha g(w + rho g / ||g||) + (1 - alpha) m.

    Formula:
        step: w \gets w - \eta\, [\, \alpha\, g(w + e) + (1 - \alpha)\, m \,], \quad e = \rho\,
            \unit{g(w)}
        server: w^{t+1} = w^t + \mean_S (u_i - w^t), \quad m = \mean_S \frac{w^t - u_i}{K \eta}

    Args:
        rho: FL-Simulator 0.1, FedTOGA's tables 0.01.

    References:
        Qu et al., ICML 2022, https://arxiv.org/abs/2206.02618

    Released code:
        FedLESAM's omits alpha before the gradient, by mistake: `gain="one"`.
    """
    momentum = {"alpha": ClientMomentum, "one": ReleasedClientMomentum}[gain]
    return Algorithm(SAM(rho), momentum(alpha))


@checked
def fedgamma(rho: opt.Rho = 0.1) -> Algorithm:
    r"""FedGAMMA: SCAFFOLD with sharpness-aware gradients (Dai et al., TNNLS 2023).

    Clients step along g(w + rho g / ||g||) + c - c_i.

    Formula:
        step: w \gets w - \eta\, [\, g(w + e) + c - c_i \,], \quad e = \rho\, \unit{g(w)}
        end: c_i \gets c_i - c + \frac{w^t - u_i}{K \eta}
        server: w^{t+1} = w^t + \mean_S (u_i - w^t), \quad c = \mean_N c_i

    Args:
        rho: FedLESAM 0.1, FL-Simulator 0.01.

    References:
        Dai et al., IEEE TNNLS 2023, https://ieeexplore.ieee.org/document/10269141
    """
    return Algorithm(SAM(rho), ControlVariate())


@checked
def fedspeed(
    rho: opt.Rho = 0.1,
    lam: opt.Lam = 0.1,
    mix: UnitInterval = 1.0,
    ascent: Literal["unit", "raw"] = "unit",
    dual: opt.Dual = "all",
    prox_clip: opt.ProxClip = "whole",
    pull: opt.Pull = "squared",
) -> Algorithm:
    r"""FedSpeed: sharpness-aware steps with a prox-correction dual (Sun et al., ICLR 2023).

    Clients step along (1 - mix) g(w) + mix g(w + rho g / ||g||) + lam (h_i + w - w^t).

    Formula:
        step: w \gets w - \eta\, [\, (1 - \mathrm{mix})\, g(w) + \mathrm{mix}\, g(w + e) + \lambda\,
            (h_i + w - w^t) \,], \quad e = \rho\, \unit{g(w)}
        end: h_i \gets h_i + u_i - w^t
        server: w^{t+1} = \mean_S u_i + h, \quad h = \mean_N h_i

    Args:
        lam: 1/lambda in the paper.
        mix: Weight of the perturbed gradient, alpha in the paper.
        ascent: Ascend by rho along the unit gradient, or by rho g (paper).

    References:
        Sun et al., ICLR 2023, https://arxiv.org/abs/2302.10429

    Released code:
        It has mix = 1, a unit ascent, and the mean dual of all clients, as the published tables;
        the paper averages amended models (`dual="active"`), which its authors report to collapse
        late unless lam decays. It clips only the half h_i - w^t (`prox_clip="split"`). FedGMT's
        repository forgets the square of the pull (`pull="norm"`).
    """
    return Algorithm(SAM(rho, mix, ascent), *opt.dynamic(lam, dual, prox_clip, pull=pull))
