"""Methods that look at outputs and features: proximal losses, distillation, contrast."""

from collections.abc import Callable
from typing import Literal

from fl_lightning import terms
from fl_lightning.algorithms.shared_options import WEIGHTS, Weighting
from fl_lightning.core.algorithm import Algorithm
from fl_lightning.core.term import Term
from fl_lightning.terms import sol as orthogonal

Scope = Literal["head", "body", "all"]
SCOPES = {"head": orthogonal.head, "body": orthogonal.body, "all": orthogonal.everywhere}
Per = Literal["column", "tensor"]
PER = {"column": orthogonal.by_column, "tensor": orthogonal.by_tensor}
Proximal = Literal["kl", "l2", "feddyn", "scaffold", "fednova", "moon", "ntd"]


def _proximal(name: str, tau: float) -> Term:
    objectives: dict[str, Callable[[], Term]] = {
        "kl": lambda: terms.Distill(tau=tau),
        "l2": lambda: terms.Proximal(1.0),
        "feddyn": lambda: terms.DynamicRegularizer(0.1),
        "scaffold": terms.ControlVariate,
        "fednova": terms.CenteredGradientVariate,
        "moon": terms.Contrastive,
        "ntd": lambda: terms.NotTrueDistillation(tau=tau),
    }
    return objectives[name]()


def fedsol(
    rho: float = 2.0,
    strength: Literal["adaptive", "fixed"] = "adaptive",
    per: Per = "column",
    scope: Scope = "head",
    proximal: Proximal = "kl",
    tau: float = 3.0,
    first_step: Literal["still", "noise"] = "still",
    weighting: Weighting = "by_size",
) -> Algorithm:
    """FedSOL: gradients taken where a proximal objective would rise most (Lee et al., CVPR 2024).

    Of the head along kl it takes one pass a step: the body runs once.

    Args:
        rho: Radius of the perturbation (2.0 chosen in the paper; its headline is 1.5 on the head).
        strength: Weigh the perturbation by how far each weight has moved, or not.
        per: Adaptive strength over the norm of each column (released code) or of the whole
            parameter (paper).
        scope: What is perturbed: the head (the paper's main setting), the body, or all (its Table
            4).
        proximal: The objective that gives the direction: distillation, distance, or the term of
            another method.
        tau: Temperature of kl and ntd.
        first_step: With fixed strength: no perturbation before the client has moved, or along
            rounding noise, as released.
        weighting: Weigh clients by their samples (code), or all alike (Algorithm 1).

    Raises:
        ValueError: If the head is to be perturbed along moon, which does not depend on it.
    """
    if (scope, proximal) == ("head", "moon"):
        raise ValueError(
            "moon looks at what enters the head and gives it no direction: perturb the body or all, as scope"
        )
    scale, still = (PER[per], True) if strength == "adaptive" else (None, first_step == "still")
    nova = (terms.NormalizedAveraging(),) if proximal == "fednova" else ()
    term: Term = (
        terms.HeadSOL(rho, tau, scale, still)
        if (scope, proximal) == ("head", "kl")
        else terms.SOL(_proximal(proximal, tau), rho, scale, SCOPES[scope], still=still)
    )
    return Algorithm(*nova, term, weight=WEIGHTS[weighting])


def fedsol_ablation(
    row: Literal["a0", "a1", "a2", "a3", "a4", "a5", "a6"] = "a1",
    rho: float = 2.0,
    strength: Literal["adaptive", "fixed"] = "adaptive",
    per: Per = "column",
    scope: Scope = "head",
    beta: float = 1.0,
    tau: float = 3.0,
    weighting: Weighting = "by_size",
) -> Algorithm:
    """FedSOL's Table 10: where the local (l) and the proximal (p) gradient are taken, e being along the proximal one.

    Args:
        row: a0 l(w); a1 l(w+e), FedSOL; a2 l(w) + p(w+e); a3 l(w+e) + p(w+e); a4 both at w + rho
            unit(l + p), plain SAM of the sum; a5 l(w) + p(w), distillation; a6 l(w+e) + p(w).
        rho: Radius of the perturbation.
        strength: As in `fedsol`.
        per: As in `fedsol`.
        scope: As in `fedsol`.
        beta: Coefficient of the proximal gradient (not given in the paper); of no account in a0 and
            a1.
        tau: Temperature of the distillation.
        weighting: Weigh clients by their samples, or all alike.
    """
    distill = terms.Distill(1.0 if row == "a1" else beta, tau)  # in a1 it gives a direction alone
    scale = PER[per] if strength == "adaptive" else None

    def sol(use: Callable[..., object]) -> tuple[Term, ...]:
        return (terms.SOL(distill, rho, scale, SCOPES[scope], use),)  # type: ignore[arg-type]

    rows: dict[str, Callable[[], tuple[Term, ...]]] = {
        "a0": lambda: (),
        "a1": lambda: sol(orthogonal.ahead),
        "a2": lambda: sol(orthogonal.proximal_ahead),
        "a3": lambda: sol(orthogonal.both_ahead),
        "a4": lambda: (distill, terms.SAM(rho)),
        "a5": lambda: (distill,),
        "a6": lambda: sol(orthogonal.proximal_here),
    }
    return Algorithm(*rows[row](), weight=WEIGHTS[weighting])


def gradient_projection(
    proximal: Literal["kl", "l2"] = "kl", tau: float = 3.0, weighting: Weighting = "by_size"
) -> Algorithm:
    """Gradient projection: drop from the gradient what raises the proximal objective (FedSOL's Table 1).

    Args:
        proximal: Distillation or distance.
        tau: Temperature of the distillation.
        weighting: Weigh clients by their samples, or all alike.
    """
    return Algorithm(terms.GradientProjection(_proximal(proximal, tau)), weight=WEIGHTS[weighting])


def fedntd(beta: float = 1.0, tau: float = 1.0, weighting: Weighting = "by_size") -> Algorithm:
    """FedNTD: distil the received model's opinion on the classes that are not true (Lee et al., NeurIPS 2022).

    Args:
        beta: Weight of the distillation.
        tau: Its temperature (1 in the tables, 3 the class's default).
        weighting: Weigh clients by their samples, or all alike.
    """
    return Algorithm(terms.NotTrueDistillation(beta, tau), weight=WEIGHTS[weighting])


def moon(mu: float = 1.0, tau: float = 0.5, weighting: Weighting = "by_size") -> Algorithm:
    """MOON: features near the received model's, far from the client's own last ones (Li et al., CVPR 2021).

    The features are what enters the head; the original puts a projection before its classifier,
    which is a model's matter. A client's last model begins as w^0.

    Args:
        mu: Weight of the contrast (1, example 5; FedSOL's tables 0.1).
        tau: Its temperature.
        weighting: Weigh clients by their samples, or all alike.
    """
    return Algorithm(terms.Contrastive(mu, tau), weight=WEIGHTS[weighting])


def fedrcl(
    layers: tuple[str, ...] | None = None,
    tau: float = 0.05,
    negatives: int = 2,
    threshold: float = 0.7,
    attraction: float = 1.0,
    penalty: float = 1.0,
    weighting: Weighting = "uniform",
) -> Algorithm:
    """FedRCL: relaxed contrastive learning at several feature levels (Seo et al., CVPR 2024).

    Args:
        layers: Names of the submodules whose outputs are contrasted; none is every block of the
            body.
        tau: Temperature.
        negatives: How many of the most similar samples of other classes repel.
        threshold: Classmates more similar than this repel each other.
        attraction: Weight of the contrastive loss.
        penalty: Weight of the penalty on too similar classmates.
        weighting: Weigh clients by their samples, or all alike.
    """
    contrast = terms.RelaxedContrastive(layers, tau, negatives, threshold, attraction, penalty)
    return Algorithm(contrast, weight=WEIGHTS[weighting])
