"""Methods that look at outputs and features: proximal losses, distillation, contrast."""

from functools import partial
from typing import Annotated, Literal

from typing_extensions import Doc

from fl_lightning import terms
from fl_lightning.algorithms import shared_options as opt
from fl_lightning.core.algorithm import Algorithm
from fl_lightning.core.constraints import (
    FiniteFloat,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    checked,
)
from fl_lightning.core.term import Term
from fl_lightning.core.weighting import by_size
from fl_lightning.errors import UserError

Objective = Literal["kl", "l2", "feddyn", "scaffold", "fednova", "moon", "ntd"]


def _objective(name: str, tau: float) -> Term:
    return {
        "kl": terms.Distill(tau=tau),
        "l2": terms.Proximal(1.0),
        "feddyn": terms.DynamicRegularizer(0.1),
        "scaffold": terms.ControlVariate(),
        "fednova": terms.CenteredGradientVariate(),
        "moon": terms.Contrastive(),
        "ntd": terms.NotTrueDistillation(tau=tau),
    }[name]


@checked
def fedsol(
    rho: opt.Rho = 2.0,
    strength: opt.Strength = "adaptive",
    per: opt.Per = "column",
    scope: opt.Scope = "head",
    proximal: Objective = "kl",
    tau: opt.Tau = 3.0,
    first_step: Literal["still", "noise"] = "still",
) -> Algorithm:
    r"""FedSOL: gradients taken where a proximal objective would rise most (Lee et al., CVPR 2024).

    Clients step along g(w + rho Lambda q / ||q||), q being the gradient of KL(received || local)
    and Lambda how far each weight has moved. Of the head along kl it takes one pass a step.

    Formula:
        step: w \gets w - \eta\, g(w + e), \quad e = \rho\, \Lambda \odot \unit{q} \text{ in the
            head}
        with: q = \nabla_w\, \mathrm{KL}_\tau(w^t \,\|\, w), \quad \Lambda = \frac{|w - w^t|}{\|w -
            w^t\|} \text{ in each column}

    Args:
        rho: 2.0 chosen in the paper; its headline is 1.5 on the head.
        scope: The head is the paper's main setting, all its Table 4.
        proximal: Objective that gives the direction: distillation, distance, or another method's.
        tau: Also of ntd.
        first_step: Of fixed strength: not perturbed, or along rounding noise (released code).

    Raises:
        UserError: If the head is to be perturbed along moon, which does not depend on it.

    References:
        Lee et al., CVPR 2024, https://arxiv.org/abs/2308.12532

    Released code:
        Its norm of Lambda is the default, since it gives the gain over FedAvg that the paper's
        Table 2 has on MNIST: +1.36 points, published +1.33; the norm of the whole parameter
        (`per="tensor"`, Eq. 7) gives +0.80 (benchmarks/RESULTS.md, one seed). Models are averaged
        by size, as here (Algorithm 1: uniformly). A fixed strength blows rounding noise
        up at the first step (`first_step="noise"`).
    """
    if (scope, proximal) == ("head", "moon"):
        raise UserError("proximal moon gives the head no direction: choose scope body or all")
    scale, still = (per, True) if strength == "adaptive" else (None, first_step == "still")
    nova = (terms.NormalizedAveraging(),) if proximal == "fednova" else ()
    term: Term = terms.SOL(_objective(proximal, tau), rho, scale, scope, still=still)
    if (scope, proximal) == ("head", "kl"):
        term = terms.HeadSOL(rho, tau, scale, still)
    return Algorithm(*nova, term, weight=by_size)


@checked
def fedsol_ablation(
    row: Literal["a0", "a1", "a2", "a3", "a4", "a5", "a6"] = "a1",
    rho: opt.Rho = 2.0,
    strength: opt.Strength = "adaptive",
    per: opt.Per = "column",
    scope: opt.Scope = "head",
    beta: NonNegativeFloat = 1.0,
    tau: opt.Tau = 3.0,
) -> Algorithm:
    r"""FedSOL's Table 10: where local and proximal gradients are taken (Lee et al., CVPR 2024).

    l is the local gradient, p the proximal one, and e the perturbation along p.

    Formula:
        a0: w \gets w - \eta\, g(w)
        a1: w \gets w - \eta\, g(w + e)
        a2: w \gets w - \eta\, [\, g(w) + \beta\, q(w + e) \,]
        a3: w \gets w - \eta\, [\, g(w + e) + \beta\, q(w + e) \,]
        a4: w \gets w - \eta\, r\Bigl(w + \rho\, \unit{r(w)}\Bigr), \quad r = g + \beta\, q
        a5: w \gets w - \eta\, [\, g(w) + \beta\, q(w) \,]
        a6: w \gets w - \eta\, [\, g(w + e) + \beta\, q(w) \,]
        with: q(w) = \nabla_w\, \mathrm{KL}_\tau(w^t \,\|\, w), \quad e = \rho\, \Lambda \odot
            \unit{q(w)} \text{ in the head}, \quad \Lambda = \frac{|w - w^t|}{\|w - w^t\|} \text{ in
            each column}

    Args:
        row: a0 l(w); a1 l(w+e), FedSOL; a2 l(w) + p(w+e); a3 l(w+e) + p(w+e); a4 both at w + rho
            unit(l + p), plain SAM of the sum; a5 l(w) + p(w), distillation; a6 l(w+e) + p(w).
        beta: Coefficient of the proximal gradient (not given in the paper); unused in a0 and a1.

    References:
        Lee et al., CVPR 2024, https://arxiv.org/abs/2308.12532
    """
    scale, distill = per if strength == "adaptive" else None, terms.Distill(beta, tau)
    fedsol = partial(terms.SOL, terms.Distill(tau=tau), rho, scale, scope, beta=beta)
    rows: dict[str, tuple[Term, ...]] = {
        "a0": (),
        "a1": (fedsol("ahead"),),
        "a2": (fedsol("here", "ahead"),),
        "a3": (fedsol("ahead", "ahead"),),
        "a4": (distill, terms.SAM(rho)),
        "a5": (distill,),
        "a6": (fedsol("ahead", "here"),),
    }
    return Algorithm(*rows[row], weight=by_size)


@checked
def gradient_projection(
    proximal: Annotated[Literal["kl", "l2"], Doc("Distillation or distance.")] = "kl",
    tau: opt.Tau = 3.0,
) -> Algorithm:
    r"""Gradient projection: no step against a proximal objective (Lee et al., CVPR 2024, Table 1).

    Clients step along g - min(0, <g, q> / ||q||^2) q, q being the proximal gradient.

    Formula:
        step: w \gets w - \eta\, \Bigl[ g(w) - \min\Bigl(0, \frac{\langle g(w), q
            \rangle}{\|q\|^2}\Bigr)\, q \Bigr], \quad q = \nabla_w\, \mathrm{KL}_\tau(w^t \,\|\, w)

    References:
        Lee et al., CVPR 2024, https://arxiv.org/abs/2308.12532
    """
    return Algorithm(terms.GradientProjection(_objective(proximal, tau)), weight=by_size)


@checked
def fedntd(beta: NonNegativeFloat = 1.0, tau: opt.Tau = 1.0) -> Algorithm:
    r"""FedNTD: distillation on the classes that are not true (Lee et al., NeurIPS 2022).

    Adds beta tau^2 KL(received || local) over the C - 1 other classes to the loss.

    Formula:
        step: w \gets w - \eta\, \nabla \bigl[ \ell(w) + \beta\, \tau^2\, \mathrm{KL}_\tau(w^t
            \,\|\, w) \text{ over the classes that are not true} \bigr]

    Args:
        beta: Weight of the distillation.
        tau: 1 in the tables, 3 the default of the authors' class.

    References:
        Lee et al., NeurIPS 2022, https://arxiv.org/abs/2106.03097
    """
    return Algorithm(terms.NotTrueDistillation(beta, tau), weight=by_size)


@checked
def fedgkd(gamma: NonNegativeFloat = 0.1, models: PositiveInt = 5, tau: opt.Tau = 1.0) -> Algorithm:
    r"""FedGKD: distillation of the mean of recent global models (Yao et al., IEEE TC 2024).

    Adds gamma tau^2 KL(e || local), e being the mean of the last global models, without w^0.

    Formula:
        step: w \gets w - \eta\, \nabla \bigl[ \ell(w) + \gamma\, \tau^2\, \mathrm{KL}_\tau(e^t
            \,\|\, w) \bigr]
        with: e^t = \frac{1}{n} \sum_{s=0}^{n-1} w^{t-s}, \quad n = \min(t, \mathrm{models}), \quad
            \gamma = 0 \text{ in the first round}

    Args:
        gamma: Weight of the distillation.
        models: Number of global models in the mean; 1 distills the received one.

    References:
        Yao et al., IEEE TC 2024, https://arxiv.org/abs/2107.00051

    Released code:
        Its commands have these values. FedGKD-VOTE, with a teacher for each model, is not offered.
    """
    return Algorithm(terms.RecentTeacher(gamma, models, tau))


@checked
def moon(mu: NonNegativeFloat = 1.0, tau: PositiveFloat = 0.5) -> Algorithm:
    r"""MOON: features near the received model's, far from the last own ones (Li et al., CVPR 2021).

    Adds mu softplus((cos(z, z_own) - cos(z, z_received)) / tau) to the loss, z being what enters
    the head. A client's last model begins as w^0.

    Formula:
        step: w \gets w - \eta\, \nabla \Bigl[ \ell(w) - \mu\, \log\, \frac{\exp(\cos(z, z^t) /
            \tau)}{\exp(\cos(z, z^t) / \tau) + \exp(\cos(z, z_i) / \tau)} \Bigr]
        with: z, z^t, z_i \text{: features of } w \text{, of } w^t \text{ and of the client's last
            model}

    Args:
        mu: Weight of the contrast (1, example 5; FedSOL's tables 0.1).
        tau: Temperature of the contrast.

    References:
        Li et al., CVPR 2021, https://arxiv.org/abs/2103.16257

    Released code:
        The original's model has a projection before its classifier; FedSOL's repository has none.
    """
    return Algorithm(terms.Contrastive(mu, tau), weight=by_size)


@checked
def fedrcl(
    layers: tuple[str, ...] | None = None,
    tau: PositiveFloat = 0.05,
    negatives: NonNegativeInt = 2,
    threshold: FiniteFloat = 0.7,
    attraction: NonNegativeFloat = 1.0,
    penalty: NonNegativeFloat = 1.0,
) -> Algorithm:
    r"""FedRCL: relaxed contrastive learning at several feature levels (Seo et al., CVPR 2024).

    The loss gains a supervised contrastive loss of each layer's features, and a penalty that
    separates classmates which are too similar.

    Formula:
        step: w \gets w - \eta\, \nabla \Bigl[ \ell(w) + \frac{1}{L} \sum_{l=1}^{L} \bigl(
            \mathrm{attraction}\, A_l + \mathrm{penalty}\, P_l \bigr) \Bigr]
        with: A_l = \log \Bigl( 1 + \sum_{n} e^{(s_n - s_-) / \tau} \Bigr), \quad P_l = \log \bigl(
            1 + e^{(s_+ - 1) / \tau} \bigr) \text{ where } s_+ \ge \text{threshold}
        and: s_-, s_+ \text{: cosine to the least similar sample of the class, with and without
            itself; } s_n \text{: to the nearest of others}

    Args:
        layers: Names of the submodules whose outputs are contrasted; none is every block of the
            body, a normalization together with the layer before it (five in a ResNet, as released).
        tau: Temperature.
        negatives: Number of the most similar samples of other classes that repel.
        threshold: The least similar classmate repels if it is more similar than this.
        attraction: Weight of the contrastive loss.
        penalty: Weight of the penalty on too similar classmates.

    References:
        Seo et al., CVPR 2024, https://arxiv.org/abs/2401.04928
    """
    contrast = terms.RelaxedContrastive(layers, tau, negatives, threshold, attraction, penalty)
    return Algorithm(contrast)
