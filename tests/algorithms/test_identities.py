"""One method is another where a coefficient vanishes."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest
from executors import EAGER, assert_agree
from problems import assert_same_unless, classification, distances, hard, trained, without_addresses
from torch import Tensor
from torch.nn import functional as F
from torch.optim import SGD, Adagrad

from fl_lightning import Algorithm, Term, algorithms, by_size, uniform
from fl_lightning.algorithms import modifiers
from fl_lightning.core.oracle import Oracle
from fl_lightning.terms import (
    GSAM,
    SAM,
    SOL,
    TOGA,
    Distill,
    HeadSOL,
    LinearDual,
    Muon,
    Proximal,
    VaSSO,
)
from fl_lightning.terms.released import NormPull
from fl_lightning.terms.released import ReleasedControlVariate as Variate

C = algorithms
AVG, UNIFORM = C.fedavg(), Algorithm()
DISTILLATION = Algorithm(Distill(), weight=by_size)
FEDDC = C.feddc(alpha=0.1, correction_lr="base")
FEDDC_ACTIVE = C.feddc(alpha=0.1, correction_lr="base", dual="active")
FEDDC_BY_SIZE = C.feddc(alpha=0.0, correction_lr="base", size_weighting=True)
FEDDYN_BY_SIZE = C.feddyn(alpha=0.1, size_weighting=True)
SGD_WITH_MOMENTUM = AVG.replace(server=partial(SGD, lr=1.0, momentum=0.7))


@dataclass(frozen=True)
class Again(Term):
    """The task's loss as a proximal one."""

    def gradient(self, oracle: Oracle, w: Tensor, v: Any) -> Tensor:
        return oracle.of(lambda b: b.loss + F.cross_entropy(b.out, b.y))(w)


def of(term: Callable[..., Term], *args: Any, **options: Any) -> Callable[..., Algorithm]:
    return lambda **more: Algorithm(term(*args, **{**options, **more}))


def feddc(k: float = 1.0) -> Algorithm:
    dual, variate = C.feddc(alpha=0.1, size_weighting=True).terms
    return Algorithm(dual, replace(variate, k=k))


def toga(**trend: float) -> Algorithm:
    term, dual = C.fedtoga(rho=0.2, **trend).terms
    return Algorithm(replace(term, eps=1e-12), dual)


ssg = partial(C.fedssg, alpha=0.1, gate="none", alignment="proximal")
ablation = C.fedsol_ablation

SAME: list[tuple[Callable[..., Algorithm], dict[str, Any], Algorithm]] = [
    (C.fedprox, {"mu": 0}, AVG),
    (C.fedsam, {"rho": 0}, UNIFORM),
    (C.fedasam, {"rho": 0}, AVG),
    (C.fedlesam, {"rho": 0}, UNIFORM),
    (partial(C.fedlesam, reference="last_round"), {"rho": 0}, UNIFORM),
    (C.fedlesam_s, {"rho": 0}, C.scaffold()),
    (C.fedlesam_d, {"rho": 0}, C.feddyn()),
    (C.fedgamma, {"rho": 0}, C.scaffold()),
    (C.mofedsam, {"rho": 0}, C.fedcm()),
    (C.mofedsam, {"alpha": 1.0}, C.fedsam(rho=0.1)),
    (partial(C.mofedsam, gain="one"), {"alpha": 1.0}, C.fedsam(rho=0.1)),
    (C.fedspeed, {"rho": 0}, C.feddyn()),
    (C.fedspeed, {"mix": 0.0}, C.feddyn()),
    (C.fedsmoo, {"rho": 0}, C.feddyn()),
    (C.fedcm, {"alpha": 1.0}, UNIFORM),
    (C.mimelite, {"beta": 0.0}, UNIFORM),
    (partial(C.adabest, beta=0.0), {"mu": 0.0}, UNIFORM),
    (of(Variate), {"k": 0.0}, UNIFORM),
    (partial(C.fedtoga, rho=0), {"kappa": 0, "beta": 0}, C.feddyn()),
    (toga, {"kappa": 0, "beta": 0}, C.fedspeed(rho=0.2)),
    (of(TOGA, rho=0, kappa=0), {"beta": 0}, UNIFORM),
    (partial(C.fedvra, a=2.0), {"a": 1.0}, C.feddyn()),
    (partial(C.fedadmm, eta=0.5, memory="none"), {"rho": 0.0}, UNIFORM),
    (C.fedgmt, {"gamma": 0.0}, Algorithm(LinearDual(0.1), weight=by_size)),
    (C.fedgloss, {"rho": 0.0, "local_rho": 0.0}, C.feddyn().replace(weight=by_size)),
    (partial(C.fedgf, threshold=0.0), {"threshold": 1e9}, C.fedsam(0.05).replace(weight=by_size)),
    (C.fednsam, {"gamma": 0.0}, C.fedsam(0.05)),
    (partial(C.fednsam, ascent="momentum", gamma=0.0), {"rho": 0.0}, UNIFORM),
    (partial(C.fedtoga, perturbation="released"), {"rho": 0.0}, C.fedtoga(0.0, prox_clip="split")),
    (of(NormPull), {"mu": 0.0}, UNIFORM),
    (of(VaSSO, 0.2), {"theta": 1.0}, Algorithm(SAM(0.2))),
    (of(GSAM, 0.2), {"alpha": 0.0}, Algorithm(SAM(0.2))),
    (C.fedpac_muon, {"beta": 0.98}, C.fedmuon()),
    (C.fedmuon, {"gamma": 0.0, "gain": 1.0}, Algorithm(Muon("whole", 0.98))),
    (C.fedntd, {"beta": 0.0}, AVG),
    (C.fedgkd, {"gamma": 0.0}, UNIFORM),
    (C.moon, {"mu": 0.0}, AVG),
    (partial(C.fedrcl, attraction=0.0, threshold=0.0, penalty=100.0), {"penalty": 0.0}, UNIFORM),
    (C.feddecorr, {"beta": 0.0}, AVG),
    (partial(C.fedrs, restricts="rare"), {"alpha": 1.0}, AVG),
    (C.feddisco, {"a": 0.0, "b": 0.0}, AVG),
    (C.qffl, {"q": 0.0}, UNIFORM),
    (C.qfedavg, {"q": 0.0}, UNIFORM),
    (C.afl, {"step": 0.0}, UNIFORM),
    # server steps and starts
    (C.fedavgm, {"beta": 0.0}, AVG),
    (C.fedavgm, {"beta": 0.7}, SGD_WITH_MOMENTUM),
    (
        partial(C.fedadagrad, tau=0.01, v0=0.1),
        {"v0": None},
        AVG.replace(server=partial(Adagrad, lr=0.01, initial_accumulator_value=0.01**2, eps=0.01)),
    ),
    (partial(C.fedacg, prox=0.0), {"beta": 0.0}, UNIFORM),
    (C.fedacg, {"beta": 0.0, "prox": 0.05}, C.fedprox(mu=0.1).replace(weight=uniform)),
    (C.fedinit, {"beta": 0.0}, UNIFORM),
    (partial(C.fedinit, server="models"), {"beta": 0.0}, UNIFORM),
    # FedSSG and FedDC
    (partial(ssg, alignment="inner"), {"alignment": "proximal"}, FEDDC),
    (partial(ssg, gate="horizon"), {"gate": "none"}, FEDDC),
    (C.feddc, {"alpha": 0.1, "correction_lr": "base"}, ssg()),
    (partial(ssg, aggregation="inverse_n"), {"aggregation": "active"}, FEDDC_ACTIVE),
    (ssg, {"correction": False}, C.feddyn(alpha=0.1)),
    (partial(ssg, correction=False), {"size_weighting": True}, FEDDYN_BY_SIZE),
    (partial(C.fedssg, alignment="none", correction=False), {"gate": "none"}, C.feddyn(alpha=0.0)),
    (partial(C.fedssg, alpha=0.0, size_weighting=True), {"gate": "none"}, FEDDC_BY_SIZE),
    (feddc, {"k": 0.0}, FEDDYN_BY_SIZE),
    # FedSOL
    *(
        (partial(C.fedsol, scope=scope, strength=strength), {"rho": 0.0}, AVG)
        for scope in ("head", "body", "all")
        for strength in ("adaptive", "fixed")
    ),
    *(
        (partial(C.fedsol, scope="all", proximal=proximal), {"rho": 0.0}, base)
        for proximal, base in {
            "scaffold": AVG,
            "fednova": C.fednova(),
            "feddyn": C.feddyn(alpha=0.0).replace(weight=by_size),
            "moon": AVG,
            "ntd": AVG,
        }.items()
    ),
    (partial(C.fedsol_ft, per="tensor"), {"per": "column"}, C.fedsol()),
    (of(SOL, Again(), rho=0.3, scale=None), {"still": False}, Algorithm(SAM(0.3))),
    *(
        (of(SOL, inner=inner), {"inner": scaled, "rho": 0.3}, Algorithm(SOL(inner, 0.3)))
        for inner, scaled in [(Proximal(1.0), Proximal(7.0)), (Distill(), Distill(beta=7.0))]
    ),
    (partial(ablation, row="a1"), {"row": "a0"}, AVG),
    (
        partial(ablation, row="a1", scope="all"),
        {"strength": "fixed"},
        C.fedsol(scope="all", strength="fixed"),
    ),
    (partial(ablation, row="a4"), {"rho": 0.3}, Algorithm(Distill(), SAM(0.3), weight=by_size)),
    (partial(ablation, row="a5", beta=0.0), {"beta": 1.0}, DISTILLATION),
    *(
        (partial(ablation, row=row), {"beta": 0.0}, ablation(same))
        for row, same in {"a2": "a0", "a3": "a1", "a5": "a0", "a6": "a1"}.items()
    ),
    *((partial(ablation, row=row), {"rho": 0.0}, ablation("a5")) for row in ("a2", "a3", "a6")),
]
"""Functions that make an algorithm, coefficients, and the algorithm that it is with these."""


@pytest.mark.parametrize(
    ("make", "coefficients", "special"),
    SAME,
    ids=[without_addresses(f"{make()} with {coefficients}") for make, coefficients, _ in SAME],
)
def test_one_method_is_another(
    make: Callable[..., Algorithm], coefficients: dict[str, Any], special: Algorithm
) -> None:
    assert_same_unless(make(**coefficients), special, make(), tolerance=1e-10)


EQUALLY_LARGE: dict[str, Any] = {"clients": classification((10,) * 6)}
EVERYBODY: dict[str, Any] = {"sampler": lambda *_: [*range(4)]}
TOGA_ADMM, TOGA_DYN = (modifiers.toga().to(method(0.1)) for method in (C.fedadmm, C.feddyn))
"""With a term whose messages are made of a client's model."""


@pytest.mark.parametrize(
    ("made", "special", "where"),
    [
        (C.feddisco(a=0.0, b=0.0, alpha=0.05), C.feddyn(alpha=0.05), EQUALLY_LARGE),
        (C.fednova(), AVG, EQUALLY_LARGE),
        (C.fedlesam(0.3), C.fedlesam(0.3, "last_round"), EVERYBODY),
        (C.fedadmm(0.1), C.feddyn(0.1), EVERYBODY),
        (TOGA_ADMM, TOGA_DYN, EVERYBODY),
        (C.fedvarp(), UNIFORM, EVERYBODY),
    ],
    ids=["feddisco", "fednova", "fedlesam", "fedadmm", "fedadmm, toga", "fedvarp"],
)
def test_a_method_is_another_only_where_clients_are_equally_large_or_all_take_part(
    made: Algorithm, special: Algorithm, where: dict[str, Any]
) -> None:
    """With momentum, under which the clients' paths count."""
    assert_same_unless(made, special, C.fedavgm(), **where)
    one, other = (trained(hard(method)).w for method in (made, special))
    assert (one - other).abs().max() > 1e-6


def test_fedswas_rate_is_steady_where_it_ends_as_it_begins() -> None:
    assert_same_unless(C.fedswa(1.0, 1.0), UNIFORM, C.fedswa(), decays=False)


def test_the_head_in_one_pass_is_the_head_in_two() -> None:
    """Through both executors, under BatchNorm and dropout, whose mask the passes share."""
    one, two = HeadSOL(1.0, scale=None), SOL(Distill(), 1.0, None, "head")
    run, *others = (
        trained(hard(Algorithm(term, weight=by_size)), executor=executor)
        for term in (one, two)
        for executor in EAGER.values()
    )
    for other in others:
        assert_agree(run, other)
    assert distances(trained(hard(AVG)), run)["model"] > 1e-6
