"""Duals and drift memories against numbers worked out by hand."""

from itertools import pairwise
from math import exp
from typing import Any

import pytest
import torch
from oracles import direction_of, view
from problems import close, rows, term, vec
from regressions import regression
from torch import Tensor

from fl_lightning import Algorithm, algorithms
from fl_lightning.terms import SSG


@pytest.mark.parametrize(("a", "stable"), [(1.0, True), (5.05, True), (5.08, False), (7.0, False)])
def test_fedvras_duals_follow_a_linear_recursion_that_the_note_judges(
    a: float, stable: bool
) -> None:
    """Where the loss is flat a visit multiplies them by 1 - a gamma_K; gamma_50 is 0.395."""

    def gradient(self: Any, oracle: Any, w: Tensor, v: Any) -> Tensor:
        return (v.round == 0) * torch.ones_like(w)

    dual = algorithms.fedvra(gamma=0.1, a=a)
    flat = Algorithm(term(gradient=gradient), *dual.terms)
    run = regression(flat, steps=50, lr=0.1, rounds=4, sampler=lambda *_: [0])
    sizes = []
    for _ in range(4):
        run.train_round()
        sizes.append(rows(run, "h_i")[0])
    factor = 1 - a * (1 - (1 - 0.1 * 0.1) ** 50)
    for before, now in pairwise(sizes):
        torch.testing.assert_close(now, factor * before, rtol=1e-12, atol=1e-12)
    facts = run.local_training.rates.average_visit(0)
    notes = dual.summary_lines(facts, facts)
    assert (abs(factor) < 1) == (notes == []) == stable
    for note in notes:
        assert f"a = {a:g} is unstable" in note
        assert "below 5.06" in note


def visit(**known: Any) -> Any:
    """A first visit of a client twice as large as the mean, in round 0 of 4."""
    begun = {"h_i": vec(1, -1), "d_i": vec(0.5, 3), "count": vec(1), "d": vec(1, 2)}
    run = {"participation": 0.25, "inclusion_probability": 0.5, "round": 0, "rounds": 4}
    own = {"anchor": vec(1, 4), "size": vec(2), "lr_sum": vec(0.5), "base_lr_sum": 0.2}
    return view(**{**begun, **run, **own, **known})


def ssg(**options: Any) -> SSG:
    (term,) = algorithms.fedssg(**{"alpha": 0.4, "size_weighting": True, **options}).terms
    assert isinstance(term, SSG)
    return term


@pytest.mark.parametrize(
    ("options", "added"),
    [
        ({}, (0.5 - 0.5 + 0.2, 1 - 3 - 0.2)),  # d / 2 - d_i + 0.4 / 2 h_i
        ({"alignment": "proximal"}, (0 + 0.2 * (1 + 2), -2 + 0.2 * (-1 - 2))),
        ({"alignment": "none"}, (0, -2)),
        ({"correction": False}, (0.2, -0.2)),
        ({"size_weighting": False}, (1 - 0.5 + 0.4, 2 - 3 - 0.4)),
        ({"gate_alignment": True}, (0 + 1.5 * 0.2, -2 - 1.5 * 0.2)),  # 1 visit of 0.5 * 4, and 1
        ({"gate_alignment": True, "gate": "none"}, (0.2, -2.2)),
    ],
    ids=str,
)
def test_fedssgs_gradient_aligns_and_corrects(options: Any, added: tuple[float, float]) -> None:
    close(direction_of(ssg(**options), visit()), 3 + added[0], 4 + added[1])


@pytest.mark.parametrize(
    ("options", "round", "count", "opening"),
    [
        ({}, 0, 1, 1 / (0.5 * 4) + 1),
        ({}, 3, 2, 2 / (0.5 * 4) + 1),
        ({"gate": "running"}, 0, 1, 1 / 0.5 + 1),  # N/M and 1
        ({"gate": "running"}, 3, 3, 3 / (0.5 * 4) + 1),
        ({"gate": "running", "gate_map": "clip01"}, 0, 1, 1 + 1),
        ({"gate_map": "clip01"}, 0, 1, 0.5 + 1),
        ({"gate_map": "logistic", "gate_offset": 0.0}, 0, 1, 1 / (1 + exp(-0.5))),
        ({"gate_offset": 0.0}, 0, 1, 0.5),
        ({"gate": "none"}, 0, 1, 1),
    ],
    ids=str,
)
def test_fedssgs_gate_scales_what_is_remembered(
    options: Any, round: int, count: int, opening: float
) -> None:
    v = visit(round=round, count=vec(count)[0])
    D, _ = ssg(**options).report(vec(3, 2), v)
    # the running gate adds 1e-6 to what it divides by
    close(D, opening * 2, -opening * 2, tolerance=2e-5)
    close(v.h_i, 1 + opening * 2, -1 - opening * 2, tolerance=2e-5)


@pytest.mark.parametrize(
    ("options", "d_i", "factor"),
    [
        ({}, (0.5 - 0.5 - 3 / 0.2, 3 - 1 + 3 / 0.2), 2),
        ({"gate_memory": False}, (0 - 2 / 0.2, 2 + 2 / 0.2), 2),
        ({"correction_lr": "current"}, (0 - 3 / 0.5, 2 + 3 / 0.5), 2),
        ({"size_weighting": False}, (0.5 - 1 - 3 / 0.2, 3 - 2 + 3 / 0.2), 1),
    ],
    ids=str,
)
def test_fedssgs_gradient_memory(options: Any, d_i: tuple[float, float], factor: float) -> None:
    """The gated move is (3, -3); the server learns the change, times the client's size."""
    v = visit()
    _, change = ssg(**options).report(vec(3, 2), v)
    close(v.d_i, *d_i)
    close(change, factor * (d_i[0] - 0.5), factor * (d_i[1] - 3))
