"""Perturbations against numbers worked out by hand."""

from typing import Any

import pytest
import torch
from oracles import Asked, direction_of, view
from problems import close, layout, regression, term, vec
from torch import Tensor, nn

from fl_lightning import Algorithm, Term, TermError, algorithms
from fl_lightning.core.oracle import Oracle
from fl_lightning.core.vector import Layout
from fl_lightning.terms import ASAM, LESAM, SAM, SMOO, SOL, TOGA, LastRound, Neighbor, Proximal
from fl_lightning.terms.released import ReleasedSMOO


def test_sam_mixes_the_plain_gradient_in() -> None:
    close(direction_of(SAM(rho=0.5, mix=0.25)), 3 + 0.25 * 0.3, 4 + 0.25 * 0.8)


def test_sams_raw_ascent_is_as_long_as_the_gradient() -> None:
    close(direction_of(SAM(rho=0.5, ascent="raw")), 3 + 0.5 * 3, 2 * (2 + 0.5 * 4))


def test_asam_scales_only_the_parameters_that_are_named() -> None:
    """T is |w| + 1 = 4 of the weight and 1 of the bias, T g = (12, 4); e = 2 T^2 g / sqrt 160."""
    v = view(layout=Layout(nn.Linear(1, 1)))
    length = 2 / 160**0.5
    expected = 3 + length * 16 * 3, 2 * (2 + length * 4)
    close(direction_of(ASAM(rho=2.0, eta=1.0, scaled="weight"), v), *expected)


@pytest.mark.parametrize(("kind", "lag"), [(SMOO, 1.0), (ReleasedSMOO, 0.0)])
def test_smoos_dual_pulls_the_perturbation_to_the_common_one(kind: type[SMOO], lag: float) -> None:
    """G = (3, 4) is what is left of g - mu_i - s, so that e = (0.3, 0.4)."""
    term = kind(rho=0.5, eps=0.0)
    v = view(mu_i=vec(0, -1), s=vec(0, 1), e=vec(0, 0))
    close(direction_of(term, v), 3.3, 2 * 2.4)
    close(v.e, 0.3, 0.4)
    close(v.mu_i, 0 + 0.3 - 0, -1 + 0.4 - 1)
    close(term.report(vec(1, 3), v), 0.3 - lag * 0.3, -1.6 - lag * 0.4)


def test_smoos_common_perturbation_is_the_unit_mean_of_the_duals_or_zero() -> None:
    v = view(s=vec(9, 9))
    close(SMOO(rho=0.5).update(vec(1, 2), vec(3, -4), v), 1, 2)
    close(v.s, 0.3, -0.4, tolerance=1e-7)
    SMOO(rho=0.5).update(vec(1, 2), vec(0, 0), v)
    close(v.s, 0, 0)


@pytest.mark.parametrize(("per", "divisor"), [("steps", 4), ("epochs", 2), ("lr_sum", 0.5)])
def test_togas_trend_is_the_movement_over_steps_epochs_or_length(per: Any, divisor: float) -> None:
    v = view(origin=vec(3, 2), steps=vec(4), epochs=vec(2), lr_sum=vec(0.5), Delta=vec(0, 0))
    message = TOGA(per=per).report(vec(1, 3), v)
    close(message, 2 / divisor, -1 / divisor)
    close(TOGA().update(vec(7, 7), message, v), 7, 7)
    assert v.Delta is message


@pytest.mark.parametrize(
    ("delta", "first", "last"),
    [("steps", "0.08", "0.0075"), ("epochs", "0.8", "0.075"), ("gradient", "0.8", "0.8")],
)
@pytest.mark.parametrize("perturbation", ["local", "neighbor"])
def test_togas_effective_momentum_is_noted(
    delta: Any, first: str, last: str, perturbation: Any
) -> None:
    """Its 50 steps of 5 epochs move by a unit gradient's 5 at first, and 0.47 at last."""
    facts = ({"steps": 50, "epochs": 5, "lr_sum": lr_sum} for lr_sum in (5.0, 0.47))
    toga = algorithms.fedtoga(beta=0.8, delta=delta, perturbation=perturbation)
    (note,) = toga.summary_lines(*facts)
    assert f"momentum of {first} in the first round and {last}" in note


def test_without_beta_toga_has_no_momentum_to_note() -> None:
    facts = {"steps": 50, "epochs": 5, "lr_sum": 5.0}
    assert algorithms.fedtoga(beta=0.0).summary_lines(facts, facts) == []


@pytest.mark.parametrize(("per", "m"), [("steps", 0.08), ("lr_sum", 0.8)])
def test_beta_delta_repeats_the_last_move_by_the_effective_momentum(per: Any, m: float) -> None:
    """In a second round without a gradient."""

    def gradient(self: Term, oracle: Oracle, w: Tensor, v: Any) -> Tensor:
        return (v.round == 0) * torch.ones_like(w)

    trend = TOGA(rho=0.0, kappa=0.0, beta=0.8, per=per)
    run = regression(Algorithm(term(gradient=gradient), trend), steps=50, lr=0.1, rounds=2)
    run.train_round()
    first = run.w.detach().clone()
    run.train_round()
    close((run.w.detach() - first) / first, m, m)


def test_any_term_that_ascends_can_have_a_neighbor() -> None:
    oracle = Asked()
    v = view(R=vec(3, 4), mu_i=vec(0, -1), s=vec(0, 1), e=vec(0, 0), layout=layout())
    Neighbor(SAM(rho=0.5)).gradient(oracle, vec(1, 1), v)
    close(v.R, 1.3, 2 * 1.4)
    v.R = vec(3, 4)
    Neighbor(SMOO(rho=0.5, eps=0.0)).gradient(oracle, vec(1, 1), v)  # again R - mu_i - s = (3, 4)
    v.R = vec(3, 4)
    Neighbor(ASAM(rho=0.5, eta=0.0)).gradient(oracle, vec(1, 1), v)  # at |w| = 1 the ball is round
    assert len(oracle.at) == 3
    for at in oracle.at:
        close(at, 1.3, 1.4)


def test_a_neighbor_has_the_inner_terms_states_and_hooks() -> None:
    assert list(Neighbor(SMOO()).client) == ["mu_i"]
    assert list(Neighbor(SMOO()).local) == ["e", "R"]
    assert list(Neighbor(SMOO(), carry=True).client) == ["mu_i", "R"]
    assert list(Neighbor(SMOO(), carry=True).local) == ["e"]
    v = view(mu_i=vec(1, 2), e=vec(0, 1), s=vec(0, 0))
    close(Neighbor(SMOO()).report(vec(0, 0), v), 1, 1)
    Neighbor(SMOO(rho=0.5)).update(vec(1, 2), vec(3, -4), v)
    close(v.s, 0.3, -0.4, tolerance=1e-7)


@pytest.mark.parametrize("inner", [LESAM(), Proximal()], ids=lambda term: type(term).__name__)
def test_a_term_that_does_not_ascend_has_no_neighbor(inner: Term) -> None:
    v = view(R=vec(0, 0), e=vec(0, 0), anchor=vec(0, 0))
    fix = rf"{type(inner).__name__} asks for 1 gradient.*terms such as SAM"
    with pytest.raises(TermError, match=fix):
        direction_of(Neighbor(inner), v)


@pytest.mark.parametrize("inner", [SOL(Proximal()), Neighbor(SAM())], ids=["SOL", "Neighbor"])
def test_a_term_with_an_ascent_of_its_own_has_no_neighbor(inner: Term) -> None:
    with pytest.raises(TermError, match=rf"{type(inner).__name__} has an ascent of its own"):
        Neighbor(inner)


PERTURBATIONS = [SAM, LESAM, LastRound, TOGA, SMOO]


def displacement(term: Any, anchor: Tensor, w: Tensor) -> float:
    """How far from `w` the last gradient is taken by a client that has only seen zeros before."""
    asked, nowhere = Asked(), vec(0, 0)
    begun = dict.fromkeys(("o_i", "last", "e", "Delta", "mu_i", "s"), nowhere)
    v = view(**begun, anchor=anchor, layout=layout())
    term.start(anchor, v)
    term.gradient(asked, w, v)
    return float((asked.at[-1] - w).norm())


@pytest.mark.parametrize("term", PERTURBATIONS)
def test_a_perturbation_is_rho_long_and_a_zero_direction_perturbs_by_zero(term: Any) -> None:
    for anchor, w, length in [(vec(1, 1), vec(3, 2), 0.5), (vec(0, 0), vec(0, 0), 0.0)]:
        assert displacement(term(0.5), anchor, w) == pytest.approx(length, abs=1e-6)


@pytest.mark.parametrize("term", [*PERTURBATIONS, ASAM])
def test_eps_is_added_to_the_norm_that_a_perturbation_is_divided_by(term: Any) -> None:
    short = [displacement(term(0.5, eps=eps), vec(1, 1), vec(3, 2)) for eps in (1e6, 2e6)]
    assert short[0] / short[1] == pytest.approx(2, rel=1e-3)
