"""Drift correction: control variates, duals, client momentum."""

from typing import Literal

from fl_lightning import terms
from fl_lightning.algorithms import shared_options as opt
from fl_lightning.core.algorithm import Algorithm
from fl_lightning.core.constraints import FiniteFloat, NonNegativeFloat, PositiveFloat, checked
from fl_lightning.terms.ssg import ReleasedSSG


@checked
def scaffold(
    correction_lr: opt.Length = "current",
    size_weighting: opt.SizeWeighting = False,
) -> Algorithm:
    r"""SCAFFOLD, option II: control variates against client drift (Karimireddy et al., ICML 2020).

    Clients step along g(w) + c - c_i; then c_i <- c_i - c + (w^t - u_i) / (K eta); c = mean(c_i).

    Formula:
        step: w \gets w - \eta\, [\, g(w) + c - c_i \,]
        end: c_i \gets c_i - c + \frac{w^t - u_i}{K \eta}
        server: w^{t+1} = w^t + \mean_S (u_i - w^t), \quad c = \mean_N c_i

    References:
        Karimireddy et al., ICML 2020, https://arxiv.org/abs/1910.06378

    Released code:
        FedSSG's divides moves by K eta_0 (`correction_lr="base"`) and c in the step by the client's
        relative size (`size_weighting`); FedSOL's averages models by size (`--weighting by_size`).
    """
    return Algorithm(opt.control_variate(correction_lr, size_weighting, whole=True))


@checked
def feddyn(
    alpha: opt.Alpha = 0.1,
    dual: opt.Dual = "all",
    size_weighting: opt.SizeWeighting = False,
    prox_clip: opt.ProxClip = "whole",
    pull: opt.Pull = "squared",
) -> Algorithm:
    r"""FedDyn: dynamic regularization, a dual for each client (Acar et al., ICLR 2021).

    Clients step along g(w) + alpha (h_i + w - w^t); then h_i <- h_i + u_i - w^t, and the server
    adds the mean h of all h_i to the mean model.

    Formula:
        step: w \gets w - \eta\, [\, g(w) + \alpha\, (h_i + w - w^t) \,]
        end: h_i \gets h_i + u_i - w^t
        server: w^{t+1} = \mean_S u_i + h, \quad h = \mean_N h_i

    Args:
        alpha: FL-Simulator 0.1; FedTOGA's LeNet tables and FedSSG's 0.01.

    References:
        Acar et al., ICLR 2021, https://openreview.net/forum?id=B7v4QMR6Z9w

    Released code:
        The authors' divides alpha by the client's relative size (`size_weighting`) and clips only
        the half h_i - w^t (`prox_clip="split"`); FedSOL's averages by size (`--weighting by_size`);
        that of FedGMT forgets the square of the pull (`pull="norm"`).
    """
    return Algorithm(*opt.dynamic(alpha, dual, prox_clip, size_weighting, pull=pull))


@checked
def fedvra(
    gamma: NonNegativeFloat = 0.1,
    a: NonNegativeFloat = 1.0,
    d: PositiveFloat | None = None,
) -> Algorithm:
    r"""FedVRA: ADMM with a separate dual step, reconstructed (Wang et al., AAAI 2023).

    FedDyn (a = 1) with h_i <- h_i + a (u_i - w^t) and w <- w^t + (d/N) sum_S (u_i - w^t) + h.

    Formula:
        step: w \gets w - \eta\, [\, g(w) + \gamma\, (h_i + w - w^t) \,]
        end: h_i \gets h_i + a\, (u_i - w^t)
        server: w^{t+1} = w^t + \frac{d}{N} \sum_{i \in S} (u_i - w^t) + h, \quad h = \mean_N h_i

    Args:
        gamma: Strength of the proximal term and the dual.
        a: Dual step, stable below 2 / (1 - (1 - lr gamma)^K), 5.06 at lr 0.1 and K = 50 (FedSSG 7).
        d: Aggregation step; none is N/M, the plain mean (10 in FedSSG's text, at N/M = 10).

    References:
        Wang et al., AAAI 2023, https://arxiv.org/abs/2212.01519

    Released code:
        None of the authors. FedSSG's is FedDyn under this name, since its additional loss has no
        gradient. A third party's, https://github.com/FL-boop-blip/RFL-NLCP, has this dual step.
    """
    return Algorithm(terms.FedVRADual(gamma, a=a, d=d))


@checked
def fedadmm(
    rho: NonNegativeFloat = 0.01,
    eta: NonNegativeFloat | None = None,
    memory: Literal["change", "start", "none"] = "change",
) -> Algorithm:
    r"""FedADMM: clients send the change of their augmented models (Gong et al., ICDE 2022).

    Clients step along the gradient of the augmented Lagrangian, whose dual is y_i = rho h_i. The
    server adds eta times the mean change of w_i + h_i, w_i being the client's last model. With
    eta = M/N w^t is the mean of w_i + h_i over all clients; if everybody takes part, it is FedDyn.

    Formula:
        step: w \gets w - \eta\, [\, g(w) + \rho\, (h_i + w - w^t) \,]
        end: d_i = (u_i - w_i) + (u_i - w^t), \quad h_i \gets h_i + u_i - w^t, \quad w_i \gets u_i
        server: w^{t+1} = w^t + \frac{\eta_s}{M} \sum_{i \in S} d_i, \quad \eta_s = \frac{M}{N}
            \text{ by default}

    Args:
        rho: Strength of the proximal term and the dual.
        eta: Step of the server; none is M/N. With 1 and few clients a round "change" may diverge.
        memory: Use of a client's last model w_i: the change that it sends, or also the start of its
            next visit. "none" forgets it: w_i = w^t before a visit (released code).

    References:
        Gong et al., ICDE 2022, https://arxiv.org/abs/2204.03529

    Released code:
        It forgets w_i and has eta 1, later 0.5: `memory="none"`, `eta=1`. The server then takes
        twice the mean move, and w^t settles where the clients' mean gradient is off 0 by
        rho (M/N) / (2 eta) times the way from w^0.
    """
    return Algorithm(terms.AugmentedModel(rho, eta, memory))


@checked
def feddc(
    alpha: opt.Alpha = 0.01,
    dual: opt.Dual = "all",
    correction_lr: opt.Length = "current",
    size_weighting: opt.SizeWeighting = False,
) -> Algorithm:
    r"""FedDC: FedDyn's memory together with SCAFFOLD's correction (Gao et al., CVPR 2022).

    Clients step along g(w) + alpha (h_i + w - w^t) + c - c_i.

    Formula:
        step: w \gets w - \eta\, [\, g(w) + \alpha\, (h_i + w - w^t) + c - c_i \,]
        end: h_i \gets h_i + u_i - w^t, \quad c_i \gets c_i - c + \frac{w^t - u_i}{K \eta}
        server: w^{t+1} = \mean_S u_i + h, \quad h = \mean_N h_i, \quad c = \mean_N c_i

    References:
        Gao et al., CVPR 2022, https://arxiv.org/abs/2203.11751

    Released code:
        It adds the mean memory of all clients, the paper that of the active ones
        (`dual="active"`); it divides moves by K eta_0 (`correction_lr="base"`), and alpha and c by
        the client's relative size (`size_weighting`).
    """
    variate = opt.control_variate(correction_lr, size_weighting)
    regularizer = opt.dynamic(alpha, dual, size_weighting=size_weighting)
    return Algorithm(*regularizer, variate)


@checked
def fedcm(alpha: opt.GradientWeight = 0.1) -> Algorithm:
    r"""FedCM: client steps mixed with the global momentum (Xu et al., arXiv 2106.10874).

    Clients step along alpha g(w) + (1 - alpha) m, m being the cohort's last mean gradient.

    Formula:
        step: w \gets w - \eta\, [\, \alpha\, g(w) + (1 - \alpha)\, m \,]
        server: w^{t+1} = w^t + \mean_S (u_i - w^t), \quad m = \mean_S \frac{w^t - u_i}{K \eta}

    References:
        Xu et al., 2021, https://arxiv.org/abs/2106.10874
    """
    return Algorithm(terms.ClientMomentum(alpha))


@checked
def mimelite(beta: opt.Momentum = 0.9) -> Algorithm:
    r"""MimeLite: client steps with a momentum that the server keeps (Karimireddy et al., 2020).

    Clients step along (1 - beta) g(w) + beta m. m, the moving mean of their gradients at w^t,
    changes between rounds only.

    Formula:
        step: w \gets w - \eta\, [\, (1 - \beta)\, g(w) + \beta\, m \,]
        end: G_i = g(w^t) \text{ on the samples of client } i
        server: w^{t+1} = w^t + \mean_S (u_i - w^t), \quad m \gets (1 - \beta)\, \mean_S G_i +
            \beta\, m

    References:
        Karimireddy et al., 2020, https://arxiv.org/abs/2008.03606

    Released code:
        Google's fedjax takes G_i in a pass of its own; here it is the mean over the batches of the
        visit. It averages by size (`--weighting by_size`), and its steps are 1 / (1 - beta) times
        as long. Mime, which asks the whole cohort for its G_i before it trains, is not offered.
    """
    return Algorithm(terms.FixedMomentum(beta))


@checked
def adabest(mu: NonNegativeFloat = 0.1, beta: opt.Momentum = 0.85) -> Algorithm:
    r"""AdaBest: a client's bias, which fades while it is away (Varno et al., ECCV 2022).

    Clients step along g(w) - h_i; then h_i <- h_i / (rounds since the last visit) + mu (w^t - u_i).
    The server adds beta times the last move of the cohort's mean model a.

    Formula:
        step: w \gets w - \eta\, [\, g(w) - h_i \,]
        end: h_i \gets \frac{h_i}{t - t_i} + \mu\, (w^t - u_i), \quad t_i \gets t
        server: a^{t+1} = \mean_S u_i, \quad w^{t+1} = a^{t+1} + \beta\, (a^{t+1} - a^t), \quad
            a^0 = w^0

    Args:
        mu: Strength of the clients' correction.

    References:
        Varno et al., ECCV 2022, https://arxiv.org/abs/2204.13170

    Released code:
        It divides mu by about the steps of an epoch, batch size over the client's samples.
    """
    return Algorithm(terms.BiasEstimate(mu, beta))


@checked
def fedssg(
    alpha: NonNegativeFloat = 0.05,
    gate: Literal["horizon", "running", "none"] = "horizon",
    gate_map: Literal["identity", "clip01", "logistic"] = "identity",
    gate_offset: FiniteFloat = 1.0,
    gate_alignment: bool = False,
    gate_memory: bool = True,
    alignment: Literal["inner", "proximal", "none"] = "inner",
    correction: bool = True,
    correction_lr: opt.Length = "base",
    aggregation: Literal["all", "active", "inverse_n"] = "all",
    size_weighting: opt.SizeWeighting = False,
) -> Algorithm:
    r"""FedSSG: drift memory gated by how often a client was drawn (arXiv 2509.13895).

    Clients step along g(w) + alpha h_i + d - d_i, with D = (visits / expected + 1) (u_i - w^t),
    h_i <- h_i + D and d_i <- d_i - d - D / (K eta_0). Its ablation table is four switches:
    alignment none, correction false, gate none, and all of them.

    Formula:
        step: w \gets w - \eta\, [\, g(w) + \alpha\, h_i + d - d_i \,]
        end: D = \Bigl( \frac{\text{visits}_i}{\text{expected}} + 1 \Bigr) (u_i - w^t), \quad h_i
            \gets h_i + D, \quad d_i \gets d_i - d - \frac{D}{K \eta_0}
        server: w^{t+1} = \mean_S u_i + h, \quad h = \mean_N h_i, \quad d = \mean_N d_i

    Args:
        alpha: Strength of the alignment.
        gate: Visits over those expected in the whole run, or so far (main text); none: 1.
        gate_map: Function of that ratio.
        gate_offset: Number added to the gate; 0 in the main text.
        gate_alignment: Multiply the alignment by the gate (main text).
        gate_memory: Let the gradient memory learn from gated moves.
        alignment: Inner product with the memory, or FedDC's proximal form (main text).
        correction: Correct gradients by the gradient memories.
        aggregation: Memory that the server adds: the mean of all clients, of the cohort (Eq. 28),
            or their sum with the models over N (Algorithm 1), which shrinks the model.

    References:
        Zhou et al., 2025, https://arxiv.org/abs/2509.13895

    Released code:
        The defaults, except that it divides alpha and d by the client's relative size
        (`size_weighting`), which lets clients of a tenth of the mean size diverge. Main text,
        appendix and code differ in the options above, and in two slips that are not offered.
    """
    gated = gate, gate_map, size_weighting
    aligned = gate_alignment, gate_memory, alignment, correction, correction_lr == "base"
    released = ReleasedSSG(alpha, gate_offset, *(*gated, *aligned, aggregation))
    textbook = released == ReleasedSSG(alpha, gate_offset)
    return Algorithm(terms.SSG(alpha, gate_offset) if textbook else released)
