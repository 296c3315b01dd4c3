"""Modifiers combine with everything, equal the named methods, or are refused with a reason."""

from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
from problems import classification, distances, federation, hard, round_after_round

from fl_lightning import Algorithm, StackedExecutor, TermError, algorithms
from fl_lightning.algorithms.modifiers import PARTS, Modifier
from fl_lightning.algorithms.modifiers import ascent as ascents
from fl_lightning.algorithms.modifiers import perturb as perturbations
from fl_lightning.algorithms.modifiers import server as servers
from fl_lightning.algorithms.modifiers import start as origins
from fl_lightning.terms import Clip

C = algorithms
UNIFORM = C.fedavg(weighting="uniform")
DRIFT = {
    "scaffold": C.scaffold(),
    "feddyn": C.feddyn(prox_clip="split"),
    "fedcm": C.fedcm(),
    "feddc": C.feddc(),
    "fedssg": C.fedssg(),
    "fedprox": C.fedprox(),
    "moon": C.moon(),
    "fedntd": C.fedntd(),
    "fednova": C.fednova(),
}
PERTURB = {
    "none": perturbations.none(),
    "sam": perturbations.sam(),
    "asam": perturbations.asam(),
    "lesam": perturbations.lesam(),
    "last_round": perturbations.last_round(),
    "smoo": perturbations.smoo(),
    "toga": perturbations.toga(),
    "sol": perturbations.sol(),
}
ASCENT = {
    "own": ascents.own(),
    "neighbour": ascents.neighbour(),
    "fusion": ascents.fusion(carry=True),
}
ASCENDING = {"sam", "asam", "smoo", "toga"}
START = {"received": origins.received(), "relaxed": origins.relaxed()}
SERVER = {
    "mean": servers.mean(),
    "momentum": servers.momentum(),
    "adam": servers.adam(),
    "yogi": servers.yogi(),
    "adagrad": servers.adagrad(),
    "lookahead": servers.lookahead(),
}

Choice = tuple[str, str, str, str, str]
"""Algorithm, perturbation, ascent, start, server."""


def possible(choice: Choice) -> bool:
    _, perturb, ascent, start, server = choice
    return (ascent == "own" or perturb in ASCENDING) and (
        start == "received" or server != "lookahead"
    )


def put_together(choice: Choice) -> Algorithm:
    """As the command line does, in its order."""
    algorithm, perturb, ascent, start, server = choice
    result = DRIFT[algorithm]
    for add_on in (PERTURB[perturb], ASCENT[ascent], START[start], SERVER[server]):
        result = add_on.to(result)
    return result


EVERY_CHOICE = [
    choice for choice in product(DRIFT, PERTURB, ASCENT, START, SERVER) if possible(choice)
]


def pairs(choice: Choice) -> set[tuple[int, str, int, str]]:
    return {(i, a, j, b) for i, a in enumerate(choice) for j, b in enumerate(choice) if i < j}


def covering() -> list[Choice]:
    # A few choices in which every possible pair occurs: each time the one with most pairs not
    # seen yet.
    left = set.union(*map(pairs, EVERY_CHOICE))
    chosen = []
    while left:
        chosen.append(max(EVERY_CHOICE, key=lambda choice: len(pairs(choice) & left)))
        left -= pairs(chosen[-1])
    return chosen


CLIENTS = classification((8, 5, 7), epochs=1)


def two_rounds(algorithm: Algorithm, **options: Any) -> Any:
    run = federation(
        hard(algorithm),
        clients=CLIENTS,
        rounds=2,
        sampler=lambda n, seed, round: [[0, 1, 2], [0, 2]][round],
        **options,
    )
    return round_after_round(run, 2)


def test_everything_can_be_added_to_everything_in_one_order() -> None:
    # Perturbations inside; starts and server steps outside, in this order; in between the
    # algorithm as it was.
    for choice in EVERY_CHOICE:
        algorithm, perturb, _, start, server = choice
        made, base = put_together(choice), DRIFT[algorithm].terms
        inner, outer = perturb != "none", (start != "received") + (server != "mean")
        assert len(made.terms) == inner + len(base) + outer
        assert made.terms[inner : inner + len(base)] == base
        assert all("perturb" in term.roles for term in made.terms[:inner])
        assert [
            ("start" in t.roles, "server" in t.roles) for t in made.terms[inner + len(base) :]
        ] == (
            [(True, False)] * (start != "received")
            + [(server == "lookahead", True)] * (server != "mean")
        )


SAMPLE = covering()


def test_the_sample_holds_every_pair() -> None:
    seen = set.union(*map(pairs, SAMPLE))
    assert {a + b for a in PERTURB for b in DRIFT} <= {a + b for _, b, _, a in seen}
    assert all(pairs(choice) <= seen for choice in EVERY_CHOICE)
    assert len(SAMPLE) < 80


@pytest.mark.parametrize("choice", SAMPLE, ids="-".join)
def test_executors_agree_on_combinations(choice: Choice) -> None:
    """Two rounds: in the first one nothing is known of the past yet."""
    algorithm = put_together(choice)
    one_by_one, together = (
        two_rounds(algorithm),
        two_rounds(algorithm, executor=partial(StackedExecutor, width=3)),
    )
    assert max(distances(one_by_one, together).values()) <= 1e-10


P, A, ST, SE = perturbations, ascents, origins, servers
NAMED = {
    "fedsam": (UNIFORM, [P.sam(0.2)], C.fedsam(0.2)),
    "fedasam": (C.fedavg(), [P.asam()], C.fedasam()),
    "fedgamma": (C.scaffold(), [P.sam()], C.fedgamma()),
    "mofedsam": (C.fedcm(), [P.sam()], C.mofedsam()),
    "fedspeed": (C.feddyn(), [P.sam()], C.fedspeed()),
    "fedsmoo": (C.feddyn(), [P.smoo()], C.fedsmoo()),
    "fedlesam": (UNIFORM, [P.lesam()], C.fedlesam(0.1)),
    "fedlesam, skip": (
        UNIFORM,
        [P.lesam(first_participation="skip")],
        C.fedlesam(0.1, first_participation="skip"),
    ),
    "fedlesam, last round": (UNIFORM, [P.last_round()], C.fedlesam(0.1, "last_round")),
    "fedlesam_s": (C.scaffold(), [P.lesam()], C.fedlesam_s()),
    "fedlesam_d": (C.feddyn(), [P.lesam()], C.fedlesam_d()),
    "fedtoga": (C.feddyn(), [P.toga()], C.fedtoga()),
    "fedtoga, over epochs": (C.feddyn(), [P.toga(delta="epochs")], C.fedtoga(delta="epochs")),
    "fedtoga, neighbour": (
        C.feddyn(),
        [P.toga(), A.neighbour()],
        C.fedtoga(perturbation="neighbour"),
    ),
    "fedtoga, fusion": (
        C.feddyn(),
        [P.toga(), A.fusion(carry=True)],
        C.fedtoga(perturbation="fusion", carry=True),
    ),
    "fedavgm": (C.fedavg(), [SE.momentum(0.5, 0.7)], C.fedavgm(0.7, 0.5)),
    "fedadam": (C.fedavg(), [SE.adam()], C.fedadam()),
    "fedadam, tau": (C.fedavg(), [SE.adam(tau=0.1)], C.fedadam(tau=0.1)),
    "fedyogi": (C.fedavg(), [SE.yogi()], C.fedyogi()),
    "fedadagrad": (C.fedavg(), [SE.adagrad()], C.fedadagrad()),
    "fedacg": (UNIFORM, [SE.lookahead()], C.fedacg()),
    "fedinit": (UNIFORM, [ST.relaxed()], C.fedinit()),
    "fedinit, skip": (
        UNIFORM,
        [ST.relaxed(first_participation="skip")],
        C.fedinit(first_participation="skip"),
    ),
    "fedsol, all": (C.fedavg(), [P.sol()], C.fedsol(scope="all")),
}


def add(algorithm: Algorithm, modifiers: list[Modifier]) -> Algorithm:
    for add_on in modifiers:
        algorithm = add_on.to(algorithm)
    return algorithm


@pytest.mark.parametrize("name", NAMED)
def test_a_named_method_is_its_parts_put_together(name: str) -> None:
    base, modifiers, named = NAMED[name]
    model, expected, without = (
        two_rounds(a).w.detach() for a in (add(base, modifiers), named, base)
    )
    torch.testing.assert_close(model, expected, rtol=0, atol=0)
    assert (without - expected).abs().max() > 1e-9


def test_what_is_chosen_by_default_adds_nothing() -> None:
    for module in PARTS.values():
        default = next(
            f for f in vars(module).values() if callable(f) and f.__module__ == module.__name__
        )
        assert default() == Modifier()
        assert default().to(C.fedprox()).terms == C.fedprox().terms


GRADIENTS, STARTS, STEP = "where gradients are taken", "where clients start", "what the server does"
REFUSED = {
    "two perturbations": (C.fedsam(), [P.lesam()], f"LESAM .* SAM already says {GRADIENTS}"),
    "two added": (C.fedavg(), [P.sam(), P.toga()], f"TOGA .* SAM already says {GRADIENTS}"),
    "one and FedSOL's": (C.fedsol(), [P.sam()], f"SAM .* HeadSOL already says {GRADIENTS}"),
    "one and a neighbour's": (
        C.fedtoga(perturbation="neighbour"),
        [P.sam()],
        f"SAM .* Neighbour already says {GRADIENTS}",
    ),
    "two server steps": (
        C.fedadam(),
        [SE.momentum()],
        f"ServerMomentum .* AdaptiveServer already says {STEP}",
    ),
    "an accelerated start and Adam": (
        C.fedacg(),
        [SE.adam()],
        f"AdaptiveServer .* AcceleratedStart already says {STEP}",
    ),
    "two starts": (
        C.fedinit(),
        [SE.lookahead()],
        f"AcceleratedStart .* RelaxedInitialization already says {STARTS}",
    ),
    "a server step of clients that never send": (
        C.local_only(),
        [SE.adam()],
        f"AdaptiveServer .* LocalOnly already says {STEP}",
    ),
    "a start of clients that have their own": (
        C.local_only(),
        [ST.relaxed()],
        f"RelaxedInitialization .* LocalOnly already says {STARTS}",
    ),
    "a neighbour of nothing": (C.scaffold(), [A.neighbour()], "does not perturb: .*--perturb sam"),
}


@pytest.mark.parametrize("why", REFUSED)
def test_a_combination_without_meaning_is_refused_with_the_reason(why: str) -> None:
    base, modifiers, reason = REFUSED[why]
    base = add(base, modifiers[:-1])
    with pytest.raises(ValueError, match=reason):
        modifiers[-1].to(base)


@pytest.mark.parametrize("name", ["lesam", "last_round"])
def test_a_perturbation_that_does_not_ascend_has_no_neighbour_before_the_first_round(
    name: str,
) -> None:
    algorithm = add(C.fedavg(), [PERTURB[name], A.neighbour()])
    with pytest.raises(TermError, match=r"asks for 1 gradient.*terms such as SAM"):
        federation(algorithm)


def test_clipping_comes_after_what_is_added_and_a_split_pull_after_clipping() -> None:
    made = add(C.feddyn(prox_clip="split"), [P.sam(), SE.adam()]).with_outer_terms(Clip())
    names = [type(term).__name__ for term in made.terms]
    assert names == ["SAM", "DynamicRegularizer", "AdaptiveServer", "Clip", "UnclippedPull"]
