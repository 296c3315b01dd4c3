"""Modifiers combine with everything, equal the named methods, or are refused with a reason."""

from functools import reduce
from itertools import product
from typing import Any

import pytest
import torch
from executors import STACKED, assert_agree
from problems import classification, federation, hard, term, trained

from fl_lightning import Algorithm, TermError, algorithms
from fl_lightning.algorithms import modifiers as M
from fl_lightning.algorithms.modifiers import PARTS, Modifier
from fl_lightning.terms import Clip

C = algorithms
UNIFORM = Algorithm()
NAMES = "scaffold feddyn fedcm feddc fedssg fedprox moon fedntd fednova"
DRIFT = {name: getattr(C, name)() for name in NAMES.split()}
DRIFT["feddyn"] = C.feddyn(prox_clip="split")
PERTURB, ASCENT, START, SERVER, SEND, PERSONAL = (
    {name: make() for name, make in PARTS[part].items() if name != "word"}
    for part in ("perturb", "ascent", "client_start", "server_optimizer", "send", "personal")
)
ASCENDING = {"sam", "sam_on", "vasso", "gsam", "asam", "smoo", "toga"}

Choice = tuple[str, str, str, str, str]
"""Algorithm, perturbation, ascent, start, server."""


def possible(choice: Choice) -> bool:
    _, perturb, ascent, start, server = choice
    return (ascent == "own" or perturb in ASCENDING) and (
        start == "received" or server != "lookahead"
    )


def add(algorithm: Algorithm, *modifiers: Modifier) -> Algorithm:
    return reduce(lambda made, modifier: modifier.to(made), modifiers, algorithm)


def put_together(choice: Choice) -> Algorithm:
    """As the command line does, in its order."""
    algorithm, perturb, ascent, start, server = choice
    return add(DRIFT[algorithm], PERTURB[perturb], ASCENT[ascent], START[start], SERVER[server])


EVERY_CHOICE = [
    choice for choice in product(DRIFT, PERTURB, ASCENT, START, SERVER) if possible(choice)
]


def pairs(choice: Choice) -> set[tuple[int, str, int, str]]:
    return {(i, a, j, b) for i, a in enumerate(choice) for j, b in enumerate(choice) if i < j}


def covering() -> list[Choice]:
    """A few choices in which every possible pair occurs, the one with most new pairs first."""
    pairs_of = {choice: pairs(choice) for choice in EVERY_CHOICE}
    left, chosen = set.union(*pairs_of.values()), []
    while left:
        chosen.append(max(EVERY_CHOICE, key=lambda choice: len(pairs_of[choice] & left)))
        left -= pairs_of[chosen[-1]]
    return chosen


CLIENTS = classification((9, 5, 10))  # BatchNorm needs two samples in a part of m-SAM


def two_rounds(algorithm: Algorithm, **options: Any) -> Any:
    given = {"clients": CLIENTS, "rounds": 2, "sampler": lambda *_: [0, 1], **options}
    return trained(hard(algorithm), **given)


SAMPLE = covering()


def test_everything_can_be_added_to_everything_in_one_order() -> None:
    """Perturbations are inside, starts and server steps outside, the algorithm is between them."""
    for choice in SAMPLE:
        algorithm, perturb, _, start, server = choice
        made, base = put_together(choice), DRIFT[algorithm].terms
        inner, outer = perturb != "none", (start != "received") + (server != "mean")
        assert len(made.terms) == inner + len(base) + outer
        assert made.terms[inner : inner + len(base)] == base
        assert all("perturb" in term.roles for term in made.terms[:inner])
        roles = [("start" in t.roles, "server" in t.roles) for t in made.terms[-outer:] if outer]
        starts = [(True, False)] * (start != "received")
        assert roles == starts + [(server == "lookahead", True)] * (server != "mean")


@pytest.mark.parametrize("choice", SAMPLE, ids="-".join)
def test_executors_agree_on_combinations(choice: Choice) -> None:
    """Two rounds: in the first one nothing is known of the past yet."""
    algorithm = put_together(choice)
    assert_agree(two_rounds(algorithm), two_rounds(algorithm, executor=STACKED))


NAMED = {
    "fedsam": (UNIFORM, [M.sam(0.2)], C.fedsam(0.2)),
    "fedasam": (C.fedavg(), [M.asam()], C.fedasam()),
    "fedgamma": (C.scaffold(), [M.sam()], C.fedgamma()),
    "mofedsam": (C.fedcm(), [M.sam()], C.mofedsam()),
    "fedspeed": (C.feddyn(), [M.sam()], C.fedspeed()),
    "fedsmoo": (C.feddyn(), [M.smoo()], C.fedsmoo()),
    "fedlesam": (
        UNIFORM,
        [M.lesam(first_participation="skip")],
        C.fedlesam(0.1, first_participation="skip"),
    ),
    "fedlesam, last round": (UNIFORM, [M.last_round()], C.fedlesam(0.1, "last_round")),
    "fedlesam_s": (C.scaffold(), [M.lesam()], C.fedlesam_s()),
    "fedlesam_d": (C.feddyn(), [M.lesam()], C.fedlesam_d()),
    "fedtoga": (C.feddyn(), [M.toga()], C.fedtoga()),
    "fedtoga, over epochs": (C.feddyn(), [M.toga(delta="epochs")], C.fedtoga(delta="epochs")),
    "fedtoga, neighbor": (C.feddyn(), [M.toga(), M.neighbor()], C.fedtoga(perturbation="neighbor")),
    "fedtoga, fusion": (
        C.feddyn(),
        [M.toga(), M.fusion(carry=True)],
        C.fedtoga(perturbation="fusion", carry=True),
    ),
    "fedavgm": (C.fedavg(), [SERVER["momentum"]], C.fedavgm()),
    "fedadam": (C.fedavg(), [SERVER["adam"]], C.fedadam()),
    "fedacg": (UNIFORM, [SERVER["lookahead"]], C.fedacg()),
    "fedinit": (UNIFORM, [M.relaxed()], C.fedinit()),
    "fedsol, all": (C.fedavg(), [M.sol()], C.fedsol(scope="all")),
}


@pytest.mark.parametrize("name", NAMED)
def test_a_named_method_is_its_parts_put_together(name: str) -> None:
    base, modifiers, named = NAMED[name]
    model, expected, without = (
        two_rounds(a).w.detach() for a in (add(base, *modifiers), named, base)
    )
    torch.testing.assert_close(model, expected, rtol=0, atol=0)
    assert (without - expected).abs().max() > 1e-9


def test_what_is_chosen_by_default_adds_nothing() -> None:
    for makers in PARTS.values():
        default = next(iter(makers.values()))()
        assert default == Modifier()
        assert default.to(C.fedprox()).terms == C.fedprox().terms


MINE = term("Mine", roles=frozenset({"mine"}))
REFUSED = [
    (C.fedsam(), M.lesam(), "LESAM .* SAM already says where gradients"),
    (C.fedsol(), M.sam(), "SAM .* HeadSOL already says where gradients"),
    (M.neighbor().to(C.fedtoga()), M.sam(), "SAM .* Neighbor already says where gradients"),
    (C.fedacg(), SERVER["adam"], "Adaptive.* AcceleratedStart already says what the server"),
    (C.local_only(), SERVER["momentum"], "ServerMomentum .* LocalOnly already says what"),
    (C.fedinit(), SERVER["lookahead"], "Accelerated.* Relaxed.* already says where clients"),
    (M.topk().to(C.fedavg()), M.sign(), "Sign .* TopK already says which numbers are sent"),
    (M.sign().to(C.fedavg()), M.quantize(), "Quantize .* Sign already says how .* are rounded"),
    (C.local_only(), M.topk(), "TopK .* LocalOnly already says which numbers are sent"),
    (C.local_only(), PERSONAL["head"], "Personal .* LocalOnly already says what clients keep"),
    (C.fedbabu(), PERSONAL["head"], "no parameter of the part 'head'"),
    (C.fedavg(), M.word("lora_B"), "no parameter of the part 'lora_B'"),
    (C.local_only(), M.relaxed(), "RelaxedInitialization .* LocalOnly already says where clients"),
    (C.fedadmm(memory="start"), M.relaxed(), "Relaxed.* AugmentedModel already says where clients"),
    (Algorithm(MINE), Modifier(outer=(MINE,)), "Mine .* Mine already has the tag 'mine'"),
    (C.scaffold(), M.neighbor(), "needs a perturbation: .*--perturb sam"),
    (M.lesam().to(C.fedavg()), M.neighbor(), "LESAM has no ascent.*such as SAM"),
    (M.last_round().to(C.fedavg()), M.neighbor(), "LastRound has no ascent.*such as SAM"),
]


@pytest.mark.parametrize(("base", "modifier", "reason"), REFUSED, ids=[r for *_, r in REFUSED])
def test_a_combination_without_meaning_is_refused_with_the_reason(
    base: Algorithm, modifier: Modifier, reason: str
) -> None:
    """By the modifier or before the first round."""
    with pytest.raises((ValueError, TermError), match=reason):
        federation(modifier.to(base))


@pytest.mark.parametrize("sent", [name for name in (*SEND, "topk+quantize") if name != "none"])
@pytest.mark.parametrize(
    ("base", "personal"),
    [
        ("scaffold", PERSONAL["none"]),
        ("scaffold", PERSONAL["norm"]),
        ("feddyn", PERSONAL["head"]),
        ("feddyn", M.word("bias")),
    ],
)
def test_executors_agree_on_personal_parts_and_compression(
    base: str, personal: Modifier, sent: str
) -> None:
    """Compression comes last, so that it sees nothing of what clients keep."""
    sends = [SEND[name] for name in sent.split("+")]
    algorithm = add(DRIFT[base], M.sam(), M.relaxed(), personal, *sends)
    outer = tuple(term for modifier in sends for term in modifier.outer)
    assert algorithm.terms[len(algorithm.terms) - len(outer) :] == outer
    assert_agree(two_rounds(algorithm), two_rounds(algorithm, executor=STACKED))


def test_clipping_comes_after_what_is_added_and_a_split_pull_after_clipping() -> None:
    made = add(C.feddyn(prox_clip="split"), M.sam(), SERVER["adam"]).with_outer_terms(Clip())
    names = [type(term).__name__ for term in made.terms]
    assert names == ["SAM", "ReleasedRegularizer", "AdaptiveServer", "Clip", "UnclippedPull"]
