"""Modifiers, which the command line adds to any algorithm.

`--algorithm scaffold --perturb lesam --server-optimizer adam` is SCAFFOLD on LESAM's gradients with
Adam on the server. A combination of two terms with one role is refused.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from itertools import product
from typing import Any, ParamSpec

from fl_lightning import terms
from fl_lightning.algorithms import personal, server
from fl_lightning.algorithms import shared_options as opt
from fl_lightning.core.algorithm import Algorithm, OptimizerFactory
from fl_lightning.core.constraints import checked
from fl_lightning.core.term import Term, combining
from fl_lightning.core.weighting import uniform, with_base
from fl_lightning.errors import UserError

P = ParamSpec("P")

_DOES = {
    "perturb": "says where gradients are taken",
    "start": "says where clients start",
    "server": "says what the server does with the mean update",
    "select": "says which numbers are sent",
    "round": "says how sent numbers are rounded",
    "personal": "says what clients keep for themselves",
    "labels": "says how labels count in the loss",
}


@dataclass(frozen=True)
class Modifier:
    """An addition to an algorithm; None adds nothing.

    Attributes:
        inner: A term inside all others.
        outer: Terms outside of all others.
        server: Replaces the server's optimizer.
        around: Makes another term of the algorithm's perturbation.
        attack: Makes another term of what combines the updates; clients then count equally.
    """

    inner: Term | None = None
    outer: tuple[Term, ...] = ()
    server: OptimizerFactory | None = None
    around: Callable[[Term], Term] | None = None
    attack: Callable[[Term], Term] | None = None

    def to(self, algorithm: Algorithm) -> Algorithm:
        """The algorithm with this addition.

        Raises:
            UserError: If the algorithm has a term of that role, or no perturbation for `around`.
        """
        inner = () if self.inner is None else (self.inner,)
        for added, term in product((*inner, *self.outer), algorithm.terms):
            for role in sorted({*term.roles} & {*added.roles}):
                does = _DOES.get(role, f"has the tag {role!r}")
                raise UserError(
                    f"{type(added).__name__} cannot be added, because {type(term).__name__} "
                    f"already {does}: choose an algorithm without it, or omit the addition"
                )
        made = [*inner, *algorithm.terms, *self.outer]
        if self.around is not None:
            if not any("perturb" in term.roles for term in made):
                raise UserError("a neighborhood ascent needs a perturbation: add --perturb sam")
            made = [self.around(term) if "perturb" in term.roles else term for term in made]
        weight, server = algorithm.weight, self.server or algorithm.server
        if self.attack is not None:
            rule, weight = combining(made) or terms.Mean(), with_base(weight, uniform)
            made = made if rule in made else [*made, rule]
            made = [self.attack(rule) if term is rule else term for term in made]
        return algorithm.replace(terms=made, server=server, weight=weight)


def unchanged() -> Modifier:
    """No change to the algorithm."""
    return Modifier()


# --perturb: where gradients are taken


@checked
def sam(rho: opt.Rho = 0.1) -> Modifier:
    """SAM: along the client's gradient."""
    return Modifier(terms.SAM(rho))


@checked
def sam_on(rho: opt.Rho = 0.1) -> Modifier:
    """SAM-ON: SAM that perturbs normalization layers alone (Mueller et al., NeurIPS 2023)."""
    return Modifier(terms.SAM(rho, part="norm"))


@checked
def m_sam(rho: opt.Rho = 0.1, parts: opt.Parts = 2) -> Modifier:
    """m-SAM: SAM on each part of the batch, then the mean (Foret et al., ICLR 2021)."""
    return Modifier(terms.MSAM(rho, parts=parts))


@checked
def vasso(rho: opt.Rho = 0.1, theta: opt.Theta = 0.9, carry: opt.KeptAverage = False) -> Modifier:
    """VaSSO: along a moving average of gradients (Li and Giannakis, NeurIPS 2023)."""
    return Modifier(terms.VaSSO(rho, theta=theta, carry=carry))


@checked
def gsam(rho: opt.Rho = 0.1, alpha: opt.Gap = 0.2) -> Modifier:
    """GSAM: SAM that also lowers the gap between the two losses (Zhuang et al., ICLR 2022)."""
    return Modifier(terms.GSAM(rho, alpha=alpha))


@checked
def asam(rho: opt.Rho = 0.7, eta: opt.Eta = 0.2, scaled: opt.Scaled = "weights") -> Modifier:
    """ASAM: along the client's gradient, in a ball scaled by the weights."""
    return Modifier(terms.ASAM(rho, eta, opt.SCALED[scaled]))


@checked
def lesam(rho: opt.Rho = 0.1, first_participation: opt.First = "init") -> Modifier:
    """LESAM: back to the model of the client's last visit."""
    return Modifier(terms.LESAM(rho, first_participation == "skip"))


@checked
def last_round(rho: opt.Rho = 0.1) -> Modifier:
    """LESAM with the last round's model for every client."""
    return Modifier(terms.LastRound(rho))


@checked
def smoo(rho: opt.Rho = 0.1) -> Modifier:
    """FedSMOO's perturbations that agree on a common one."""
    return Modifier(terms.SMOO(rho))


@checked
def toga(
    rho: opt.Rho = 0.1,
    kappa: opt.Kappa = 1.0,
    beta: opt.TrendBeta = 0.8,
    delta: opt.TrendScale = "gradient",
) -> Modifier:
    """FedTOGA's trend in ascent and descent."""
    return Modifier(terms.TOGA(rho, kappa, beta, opt.TREND_SCALES[delta]))


@checked
def sol(
    rho: opt.Rho = 2.0, scope: opt.Scope = "all", per: opt.Per = "column", tau: opt.Tau = 3.0
) -> Modifier:
    """FedSOL's perturbation along the distillation loss."""
    return Modifier(terms.SOL(terms.Distill(tau=tau), rho, per, scope))


# --ascent: FedTOGA's neighborhood perturbation, for perturbations of two gradients a step


def neighbor(carry: opt.Carry = False) -> Modifier:
    """The previous perturbed gradient instead of a new one: one pass a step (N-P)."""
    return Modifier(around=lambda term: terms.Neighbor(term, carry=carry))


def fusion(carry: opt.Carry = False) -> Modifier:
    """The previous perturbed gradient added to the new one."""
    return Modifier(around=lambda term: terms.Neighbor(term, fusion=True, carry=carry))


# --client-start: where clients start


@checked
def relaxed(beta: opt.StartBeta = 0.1, first_participation: opt.First = "init") -> Modifier:
    """Away from the client's own last model: relaxed initialization.

    Duals and proximal terms still count from the received model; FL-Simulator's from the start.
    """
    return Modifier(outer=(terms.RelaxedInitialization(beta, first_participation == "skip"),))


@checked
def stale(max_staleness: opt.MaxStaleness = 4, decay: opt.StaleDecay = 0.5) -> Modifier:
    """From a model of earlier rounds, as clients of an asynchronous server that finish late."""
    return Modifier(outer=(terms.Stale(max_staleness, decay),))


# --server-optimizer and --personal: what methods do


def _of(make: Callable[P, Algorithm]) -> Callable[P, Modifier]:
    """The terms of a method, outside of all others, and its server's optimizer."""

    @wraps(make)
    def modifier(*args: P.args, **kwargs: P.kwargs) -> Modifier:
        method = make(*args, **kwargs)
        own = None if method.server is Algorithm().server else method.server
        return Modifier(outer=method.terms, server=own)

    return modifier


def word(word: opt.Word) -> Modifier:
    """The parameters whose names contain a word stay with each client."""
    return Modifier(outer=(terms.Personal(word),))


# --send: how the move is compressed or falsified


@checked
def topk(share: opt.Share = 0.01) -> Modifier:
    """The largest numbers, with error feedback."""
    return Modifier(outer=(terms.TopK(share),))


@checked
def quantize(bits: opt.Bits = 8, norm: opt.Norm = "max") -> Modifier:
    """QSGD: numbers of few bits, rounded at random without bias."""
    return Modifier(outer=(terms.Quantize(bits, norm),))


def sign() -> Modifier:
    """EF-signSGD: signs and their mean size, with error feedback."""
    return Modifier(outer=(terms.Sign(),))


@checked
def sign_flip(share: opt.Attackers = 0.2, scale: opt.Flipped = 1.0) -> Modifier:
    """An attack: some clients send the opposite of their update."""
    return Modifier(outer=(terms.SignFlip(share, scale),))


@checked
def label_flip(share: opt.Attackers = 0.2) -> Modifier:
    """An attack: some clients train on wrong labels, C - 1 - y of C classes."""
    return Modifier(terms.LabelFlip(share))


@checked
def alie(share: opt.Colluders = 0.2, z: opt.Deviations = 1.5) -> Modifier:
    """An attack: some clients send the others' mean, a little off (Baruch et al., NeurIPS 2019)."""
    return Modifier(attack=lambda rule: terms.LittleIsEnough(rule, share, z))


@checked
def ipm(share: opt.Colluders = 0.2, epsilon: opt.Opposite = 0.5) -> Modifier:
    """An attack: some clients send the opposite of the others' mean (Xie et al., UAI 2019)."""
    return Modifier(attack=lambda rule: terms.InnerProduct(rule, share, epsilon))


@checked
def min_max(share: opt.Colluders = 0.2) -> Modifier:
    """An attack no farther off than two others lie apart (Shejwalkar and Houmansadr, 2021)."""
    return Modifier(attack=lambda rule: terms.MinMax(rule, share))


def _named(*makers: Callable[..., Modifier]) -> dict[str, Callable[..., Modifier]]:
    return {make.__name__: make for make in makers}


PARTS: Mapping[str, Mapping[str, Callable[..., Modifier]]] = {
    "perturb": {
        "none": unchanged,
        **_named(sam, sam_on, m_sam, vasso, gsam, asam, lesam, last_round, smoo, toga, sol),
    },
    "ascent": {"own": unchanged, **_named(neighbor, fusion)},
    "client_start": {"received": unchanged, **_named(relaxed, stale)},
    "server_optimizer": {
        "mean": unchanged,
        "momentum": _of(server.fedavgm),
        "adam": _of(server.fedadam),
        "yogi": _of(server.fedyogi),
        "adagrad": _of(server.fedadagrad),
        "amsgrad": _of(server.fedams),
        "extrapolation": _of(server.fedexp),
        "lookahead": _of(server.fedacg),
    },
    "personal": {
        "none": unchanged,
        "head": _of(personal.fedper),
        "body": _of(personal.lg_fedavg),
        "norm": _of(personal.fedbn),
        "word": word,
    },
    "send": {
        "none": unchanged,
        **_named(topk, quantize, sign, sign_flip, label_flip, alie, ipm, min_max),
    },
}
"""The choices of each option, in the order of addition; the first one of an option adds nothing."""

JOINED = frozenset({"send"})
"""The options of which several choices can be given, joined by + or by a repeated flag."""


def method_name(options: Mapping[str, Any]) -> str:
    """The algorithm and its modifiers, such as `scaffold+lesam`."""
    nothing = {"none", *(next(iter(makers)) for makers in PARTS.values())}
    names = [options.get(part, "none") for part in PARTS]
    return "+".join([options["algorithm"], *(name for name in names if name not in nothing)])
