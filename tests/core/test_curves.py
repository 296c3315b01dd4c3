"""Curves: their numbers, and what terms see of them."""

from dataclasses import dataclass
from functools import partial
from typing import Any, get_args, get_type_hints

import pytest
import torch
from every_option import MAKERS, OPTIONS, WITH, values
from executors import STACKED, TRACED, assert_agree
from problems import federation, trained
from torch import Tensor, nn
from torch.optim import SGD
from torch.optim.lr_scheduler import CosineAnnealingLR, ExponentialLR, LinearLR

from fl_lightning import Algorithm, Term, TermError, UserError, algorithms
from fl_lightning.core.curves import Curve, cosine, exponential, linear, parse
from fl_lightning.core.oracle import Oracle
from fl_lightning.terms import SAM, SOL, AdaptiveServer, Distill, Neighbor

TEXTS = "linear(0.3, 1)", "cosine(0.1, 0)", "linear(1e-05, 0.4, 4)", "exponential(0.1, 0.998)"


@pytest.mark.parametrize("text", TEXTS)
def test_a_curve_is_what_its_text_says(text: str) -> None:
    assert str(parse(text)) == str(parse(f" {text} ".replace(", ", ","))) == text
    assert parse(text) == parse(text) != parse("linear(7, 8)")


@pytest.mark.parametrize(
    ("curve", "scheduler"),
    [
        (cosine(0.5, 0.1), partial(CosineAnnealingLR, T_max=9, eta_min=0.1)),
        (linear(0.5, 0.1), partial(LinearLR, start_factor=1, end_factor=0.2, total_iters=9)),
        (linear(0.5, 0.1, 4), partial(LinearLR, start_factor=1, end_factor=0.2, total_iters=4)),
        (exponential(0.5, 0.7), partial(ExponentialLR, gamma=0.7)),
    ],
    ids=str,
)
def test_curves_are_those_of_pytorch(curve: Curve, scheduler: Any) -> None:
    optimizer = SGD([nn.Parameter(torch.zeros(1))], lr=0.5)
    theirs = scheduler(optimizer)
    for t in range(9):
        assert curve(t, 9) == pytest.approx(theirs.get_last_lr()[0], abs=1e-12)
        optimizer.step()
        theirs.step()


@pytest.mark.parametrize("make", [linear, cosine])
def test_the_ends_are_exact(make: Any) -> None:
    for begin, end in ((0.8, 0.1), (0.1, 0.7), (0.3, 0.3)):
        curve = make(begin, end, 5)
        assert (curve(0, 9), curve(5, 9), curve(8, 9)) == (begin, end, end)
    assert {make(0.3, 0.3)(t, 9) for t in range(9)} == {0.3}


NO_CURVES = "cosin(1, 2)", "cosine(1)", "cosine(a, b)", "cosine(1, 2, 3, 4)", "linear(1, 2"
NO_CURVES += "(1, 2)", "linear()", "linear(1, 2, 0)", "linear(nan, 1)", "exponential(1, 0)"


@pytest.mark.parametrize("text", NO_CURVES)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(UserError):
        parse(text)


# -------------------------------------------------------------------------- coefficients of terms


def taken(name: str, option: str, value: Any) -> Any:
    """The algorithm that a function makes of an option; None of a modifier that makes no term."""
    made = MAKERS[name](**{**WITH.get(f"{name} {option}", {}), option: value})
    if isinstance(made, Algorithm):
        return made
    return made.to(Algorithm(SAM()) if "--ascent" in name else Algorithm())


FLOATS = [
    (name, option)
    for name, option in OPTIONS
    if float in (hint := get_type_hints(MAKERS[name])[option], *get_args(hint))
]


@pytest.mark.parametrize(("name", "option"), FLOATS, ids=map(" ".join, FLOATS))
def test_every_coefficient_may_be_a_curve(name: str, option: str) -> None:
    number = values(name, option)[-1]
    scheduled = taken(name, option, linear(number, number))
    assert scheduled.curves or f"{name} {option}" == "fedsol_ablation rho"
    assert repr(vars(scheduled.at(3, 9))) == repr(vars(taken(name, option, number)))


WITH_CURVES = {
    "fedtoga": algorithms.fedtoga(rho=linear(0.01, 0.1), beta=cosine(0.8, 0.1, 2), lam=0.1),
    "nested": Algorithm(SOL(Distill(tau=linear(1, 3)), linear(2, 1), None, still=False)),
    "wrapped": Algorithm(Neighbor(SAM(exponential(0.1, 0.5)))),
    "start and server": algorithms.fedinit(beta=linear(0.1, 0.3)).with_outer_terms(
        AdaptiveServer(tau=linear(1e-3, 1e-2), beta1=linear(0.9, 0.5))
    ),
}


@pytest.mark.parametrize("name", WITH_CURVES)
def test_executors_agree_without_a_second_compilation(name: str, traces: list[Any]) -> None:
    algorithm = WITH_CURVES[name]
    cohort: dict[str, Any] = {"sampler": lambda *_: [0, 2, 5]}
    one_by_one = trained(algorithm, **cohort)
    for executor in (STACKED, partial(TRACED, width=3)):
        assert_agree(one_by_one, trained(algorithm, executor=executor, **cohort), 1e-12)
    assert len(traces) == 1


@pytest.mark.parametrize("executor", [STACKED, TRACED])
@pytest.mark.parametrize("make", [algorithms.fedprox, algorithms.feddisco, algorithms.fedswa])
def test_the_numbers_are_those_of_the_round(make: Any, executor: Any, traces: list[Any]) -> None:
    """Of three rounds; a run in which each round has another constant computes the same."""
    curve = linear(0.3, 0.0)
    scheduled = federation(make(curve), executor=executor, decays=False)
    by_hand = federation(make(1.0), decays=False)
    for t in range(3):
        by_hand.server.scheduled = make(curve(t, 3))
        by_hand.train_round()
        scheduled.train_round()
    assert_agree(scheduled, by_hand, 1e-12)


def test_a_state_begins_with_the_number_of_the_first_round() -> None:
    run = federation(Algorithm(AdaptiveServer(tau=linear(0.5, 1))))
    assert run.server.states[0]["v"].unique().tolist() == [0.25]


@dataclass(frozen=True)
class Branching(Term):
    beta: float = 1.0

    def gradient(self, oracle: Oracle, w: Tensor, v: Any) -> Tensor:
        return oracle(w) + self.beta if self.beta > 0.5 else oracle(w)


def test_a_branch_on_a_coefficient_is_right_or_refused(traces: list[Any]) -> None:
    """It is on above 0.5, in the first two of three rounds; a compiled step cannot tell."""
    curve = Algorithm(Branching(linear(1, 0)))
    one_by_one = trained(curve)
    assert_agree(one_by_one, trained(curve, executor=STACKED))
    by_hand = federation(Algorithm(Branching(1)))
    for t in range(3):
        term = Branching(1 - t / 3)
        by_hand.server.scheduled = by_hand.server.scheduled.replace(terms=[term])
        by_hand.train_round()
    assert_agree(one_by_one, by_hand)
    with pytest.raises(TermError, match=r"Branching.gradient .*torch.where"):
        federation(curve, executor=TRACED)


@pytest.mark.parametrize(
    "make", [lambda c: 2 * c, lambda c: c / 2, lambda c: c**2, lambda c: c > 0, float, abs]
)
def test_only_terms_calculate_with_a_curve(make: Any) -> None:
    with pytest.raises(UserError, match="only a term"):
        make(linear(0.1, 0.2))


@pytest.mark.parametrize(
    ("algorithm", "said"),
    [
        (lambda: algorithms.fedsam(rho=linear(-1, 1)), ["rho of fedsam", "-1"]),
        (lambda: Algorithm(SAM(linear(1, -1))), ["rho of SAM", "in round 3 of 3"]),
        (lambda: algorithms.fedcm(exponential(0.5, 2)), ["alpha of ClientMomentum", "2.0"]),
        (lambda: Algorithm(SAM(exponential(1e300, 1e300))), ["rho of SAM", "inf"]),
        (lambda: algorithms.fedrcl(negatives=linear(1, 2)), ["negatives", "whole", "linear"]),
    ],
)
def test_numbers_out_of_range_are_refused_before_the_first_round(
    algorithm: Any, said: list[str]
) -> None:
    with pytest.raises(UserError) as refusal:
        federation(algorithm())
    assert all(part in str(refusal.value) for part in said)


@pytest.mark.parametrize(
    ("algorithm", "depends"),
    [
        (Algorithm(SAM(linear(0, 1))), True),
        (Algorithm(lr=cosine(0.1, 0)), True),
        (Algorithm(SAM(linear(0, 1, 2)), lr=exponential(0.1, 0.5)), False),
    ],
)
def test_a_curve_over_all_rounds_is_a_horizon(algorithm: Algorithm, depends: bool) -> None:
    assert federation(algorithm).cost.has_horizon is depends


def test_a_curve_may_end_where_its_coefficient_may_not_be() -> None:
    """The last round is one step short of the end; after it the method is as in the last round."""
    run = federation(Algorithm(Distill(tau=linear(3, 0))), rounds=3)
    run.fit()
    assert run.finished
    assert [term.tau for term in run.algorithm.terms] == [1.0]
