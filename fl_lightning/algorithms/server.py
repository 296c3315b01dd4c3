"""Server optimizers and starts."""

from typing import Annotated, Literal

from typing_extensions import Doc

from fl_lightning import terms
from fl_lightning.algorithms import shared_options as opt
from fl_lightning.core.algorithm import Algorithm
from fl_lightning.core.constraints import NonNegativeFloat, PositiveFloat, checked
from fl_lightning.core.weighting import by_size


@checked
def fedavgm(beta: opt.Momentum = 0.9) -> Algorithm:
    r"""FedAvgM: momentum on the server (Hsu et al., arXiv 1909.06335).

    The server moves by m <- beta m + delta, delta being the clients' mean update.

    Formula:
        server: m \gets \beta\, m + \delta, \quad w^{t+1} = w^t + m
        with: \delta = \sum_{i \in S} p_i\, (u_i - w^t)

    References:
        Hsu et al., 2019, https://arxiv.org/abs/1909.06335
    """
    return Algorithm(terms.ServerMomentum(beta), weight=by_size)


@checked
def fedadam(
    beta1: opt.Beta1 = 0.9,
    beta2: opt.Beta2 = 0.99,
    tau: opt.Adaptivity = 1e-3,
    v0: opt.SecondMoment = None,
) -> Algorithm:
    r"""FedAdam: Adam on the server, without bias correction (Reddi et al., ICLR 2021).

    The server moves by 0.01 m / (sqrt(v) + tau), with v <- beta2 v + (1 - beta2) delta^2. 0.01 is
    the server learning rate of FedTOGA's tables; FL-Simulator has 0.1 (`--server-lr 0.1`).

    Formula:
        server: m \gets \beta_1 m + (1 - \beta_1)\, \delta, \quad v \gets \beta_2 v + (1 -
            \beta_2)\, \delta^2
        then: w^{t+1} = w^t + \eta_s\, \frac{m}{\sqrt{v} + \tau}
        with: \delta = \sum_{i \in S} p_i\, (u_i - w^t)

    References:
        Reddi et al., ICLR 2021, https://arxiv.org/abs/2003.00295

    Released code:
        FL-Simulator starts the second moment at zero: `v0=0`.
    """
    term = terms.AdaptiveServer(beta1, beta2, tau, v0)
    return Algorithm(term, server=opt.sgd(0.01), weight=by_size)


@checked
def fedyogi(
    beta1: opt.Beta1 = 0.9,
    beta2: opt.Beta2 = 0.99,
    tau: opt.Adaptivity = 1e-3,
    v0: opt.SecondMoment = None,
) -> Algorithm:
    r"""FedYogi: a second moment that moves slowly (Reddi et al., ICLR 2021).

    As FedAdam, with v <- v - (1 - beta2) delta^2 sign(v - delta^2).

    Formula:
        server: m \gets \beta_1 m + (1 - \beta_1)\, \delta, \quad v \gets v - (1 - \beta_2)\,
            \delta^2 \operatorname{sign}(v - \delta^2)
        then: w^{t+1} = w^t + \eta_s\, \frac{m}{\sqrt{v} + \tau}
        with: \delta = \sum_{i \in S} p_i\, (u_i - w^t)

    References:
        Reddi et al., ICLR 2021, https://arxiv.org/abs/2003.00295
    """
    term = terms.AdaptiveServer(beta1, beta2, tau, v0, "yogi")
    return Algorithm(term, server=opt.sgd(0.01), weight=by_size)


@checked
def fedadagrad(
    beta1: opt.Beta1 = 0.0,
    tau: opt.Adaptivity = 1e-3,
    v0: opt.SecondMoment = None,
) -> Algorithm:
    r"""FedAdagrad: steps shrink with the sum of squared updates (Reddi et al., ICLR 2021).

    As FedAdam, with v <- v + delta^2.

    Formula:
        server: m \gets \beta_1 m + (1 - \beta_1)\, \delta, \quad v \gets v + \delta^2
        then: w^{t+1} = w^t + \eta_s\, \frac{m}{\sqrt{v} + \tau}
        with: \delta = \sum_{i \in S} p_i\, (u_i - w^t)

    Args:
        beta1: 0 in the paper.

    References:
        Reddi et al., ICLR 2021, https://arxiv.org/abs/2003.00295
    """
    term = terms.AdaptiveServer(beta1, 0.0, tau, v0, "adagrad")
    return Algorithm(term, server=opt.sgd(0.01), weight=by_size)


@checked
def fedams(
    beta1: opt.Beta1 = 0.9,
    beta2: opt.Beta2 = 0.99,
    eps: PositiveFloat = 1e-3,
    stabilization: Annotated[
        Literal["max", "sum"],
        Doc("Where eps is: in the maximum (Option 1), or added to the root (Option 2, AMSGrad)."),
    ] = "max",
) -> Algorithm:
    r"""FedAMS: AMSGrad on the server, with a floor (Wang et al., ICML 2022).

    As FedAdam, with the largest second moment of all rounds, and at least eps, in the root.

    Formula:
        server: m \gets \beta_1 m + (1 - \beta_1)\, \delta, \quad v \gets \beta_2 v + (1 -
            \beta_2)\, \delta^2, \quad \hat{v} \gets \max(\hat{v},\, v,\, \epsilon)
        then: w^{t+1} = w^t + \eta_s\, \frac{m}{\sqrt{\hat{v}}}
        with: \delta = \mean_S (u_i - w^t)

    Args:
        eps: A squared move, which goes with the local learning rate; the authors train at 0.01.

    References:
        Wang et al., ICML 2022, https://arxiv.org/abs/2205.02719

    Released code:
        It corrects the bias of m and of the root. With eps in the maximum this is a factor on the
        server's learning rate in round t, `sqrt(1 - beta2^t) / (1 - beta1^t)`: 1, then down to
        0.47, and slowly up again.
    """
    floor, tau = (eps, 0.0) if stabilization == "max" else (0.0, eps)
    return Algorithm(terms.MaxStabilized(beta1, beta2, tau, floor=floor))


@checked
def fedexp(eps: PositiveFloat = 1e-3) -> Algorithm:
    r"""FedExP: the server goes further where clients disagree (Jhunjhunwala et al., ICLR 2023).

    The server's step is half the mean squared length of the moves over that of their mean, and at
    least 1. The authors evaluate the mean of the last two models, which is left out here.

    Formula:
        server: w^{t+1} = w^t + \eta_g\, \delta, \quad \eta_g = \max\Bigl(1,\, \frac{\mean_S \lVert
            u_i - w^t \rVert^2}{2\, (\lVert \delta \rVert^2 + \epsilon)} \Bigr)
        with: \delta = \mean_S (u_i - w^t)

    Args:
        eps: Keeps the step small where moves cancel. The authors' is 0.1 on EMNIST, at rate 0.1.

    References:
        Jhunjhunwala et al., ICLR 2023, https://arxiv.org/abs/2301.09604

    Released code:
        It multiplies eps by M, and in each round by the square of the learning rate's decay, as
        `exponential(0.005, 0.996)` does for five clients and a decay of 0.998. It weighs both means
        by size (`--weighting by_size`).
    """
    return Algorithm(terms.Extrapolation(eps))


@checked
def fedvarp() -> Algorithm:
    r"""FedVARP: idle clients count with their last move (Jhunjhunwala et al., UAI 2022).

    y_i is the move of the client's last visit, and y the mean of all y_i. The server adds to y how
    far the cohort's moves differ from their y_i, against the variance of who is drawn.

    Formula:
        server: w^{t+1} = w^t + y + \mean_S (u_i - w^t - y_i), \quad y = \mean_N y_i
        end: y_i \gets u_i - w^t

    References:
        Jhunjhunwala et al., UAI 2022, https://arxiv.org/abs/2207.14130

    Released code:
        None of the authors. The paper's y_i are moves over K eta, and its update is K eta times
        theirs. At its constant K and learning rate this is the same.
    """
    return Algorithm(terms.ReusedMoves())


@checked
def fedacg(beta: opt.Momentum = 0.85, prox: NonNegativeFloat = 0.001) -> Algorithm:
    r"""FedACG: clients start where the server's momentum leads (Kim et al., CVPR 2024).

    Clients start at y = w^t + beta m and step along g(w) + 2 prox (w - y). The server's momentum is
    m <- beta m + mean_i (u_i - y), and w^(t+1) = w^t + m.

    Formula:
        start: y = w^t + \beta\, m
        step: w \gets w - \eta\, [\, g(w) + 2\, \mathrm{prox}\, (w - y) \,]
        server: m \gets \beta\, m + \mean_S (u_i - y), \quad w^{t+1} = w^t + m

    Args:
        beta: lambda in the paper.
        prox: Strength of the pull to the start, `prox ||u - start||^2` without 1/2. FedTOGA's
            tables: mu = 0.01 with 1/2, which is 0.005 here.

    References:
        Kim et al., CVPR 2024, https://arxiv.org/abs/2201.03172
    """
    return Algorithm(terms.AcceleratedStart(beta, prox))


@checked
def fedinit(
    beta: opt.StartBeta = 0.1,
    first_participation: opt.First = "init",
    server: Annotated[
        Literal["moves", "models"],
        Doc("What the server averages: moves from the starts (released code), or models."),
    ] = "moves",
) -> Algorithm:
    r"""FedInit: clients start away from their own last model (Sun et al., NeurIPS 2023).

    Clients start at w^t + beta (w^t - w_i), w_i being their last local model.

    Formula:
        start: y_i = w^t + \beta\, (w^t - w_i)
        server: w^{t+1} = w^t + \mean_S (u_i - y_i)
        with: w_i \text{: the last } u_i \text{ of the client}

    References:
        Sun et al., NeurIPS 2023, https://arxiv.org/abs/2306.05706

    Released code:
        The server adds the mean move from the starts, which leaves the shifts out.
    """
    skip_first = first_participation == "skip"
    return Algorithm(terms.RelaxedInitialization(beta, skip_first, whole=server == "models"))
