"""Scalars that terms log, averaged over a visit's steps and the cohort."""

from functools import partial
from math import isnan
from statistics import fmean
from typing import Any

import pytest
import torch
from executors import on_all_executors, on_eager_executors
from problems import (
    COHORTS,
    classification,
    classifier,
    distances,
    federation,
    hard,
    on_two_ranks,
    term,
)
from torch.optim import SGD

from fl_lightning import Algorithm, Term, TermError, algorithms
from fl_lightning.core.term import scalar
from fl_lightning.terms import Clip

pytestmark = [
    pytest.mark.usefixtures("traces"),
    pytest.mark.filterwarnings("ignore:There is a performance drop"),  # kl_div under vmap
]


class Logs(Term):
    """Logs its step's number and twice the client's number of steps."""

    logs, local = ("step", "even_step", "length", "started"), {"k": scalar}
    diagnostics = ("asked",)

    def start(self, w, v):
        v.log("started", 3.0)
        return w

    def gradient(self, oracle, w, v):
        v.log("step", v.k)
        v.log("even_step", lambda: v.k, weight=(v.k % 2 == 0).to(w))
        v.log("asked", lambda: v.k + 1)
        v.k = v.k + 1
        return oracle(w)

    def report(self, w, v):
        v.log("length", 2 * v.steps)
        return ()


def expected(round: int) -> dict[str, float]:
    steps = [classification().num_steps(client) for client in COHORTS[round]]
    return {
        "term/step": fmean((n - 1) / 2 for n in steps),
        "term/even_step": fmean(fmean(range(0, n, 2)) for n in steps),
        "term/length": 2 * fmean(steps),
        "term/started": 3.0,
    }


def logged(metrics: dict[str, float]) -> dict[str, float]:
    """Without that of `hard`'s clipping."""
    terms = {tag: value for tag, value in metrics.items() if tag.startswith("term/")}
    return {tag: value for tag, value in terms.items() if tag != "term/clipped"}


def first_round(*terms: Term, momentum: float = 0.0, **options: Any) -> dict[str, float]:
    algorithm = Algorithm(*terms, local=partial(SGD, lr=0.1, momentum=momentum))
    return federation(algorithm, **options).train_round()


@on_all_executors
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_the_share_of_clipped_steps_is_logged(momentum, executor):
    """Also where plain SGD is part of the compiled step."""
    norms: list[float] = []

    class Norms(Term):
        def gradient(self, oracle, w, v):
            g = oracle(w)
            norms.append(g.norm().item())
            return g

    first_round(Norms(), momentum=momentum)
    clip = Clip(sorted(norms)[len(norms) // 2])
    eager, found = (
        first_round(clip, momentum=momentum, **way)["term/clipped"]
        for way in ({}, {"executor": executor})
    )
    assert 0 < eager < 1
    assert found == pytest.approx(eager)


@pytest.mark.parametrize(("limit", "share"), [(1e9, 0.0), (1e-9, 1.0)])
def test_no_step_or_every_step_is_clipped(limit, share):
    assert first_round(Clip(limit))["term/clipped"] == share


@on_all_executors
def test_scalars_are_averaged_over_steps_and_the_cohort(executor):
    run = federation(Algorithm(Logs()), executor=executor)
    for round in range(2):
        assert logged(run.train_round()) == pytest.approx(expected(round))


def test_ranks_share_what_is_logged():
    of_ranks = on_two_ranks(
        lambda fabric: logged(federation(Algorithm(Logs()), fabric=fabric).train_round())
    )
    assert [*of_ranks] == [pytest.approx(expected(0))] * 2


def test_diagnostics_are_published_where_they_are_asked_for():
    run = federation(Algorithm(Logs()), diagnostics=True)
    metrics = run.train_round()
    assert metrics["term/asked"] == pytest.approx(metrics["term/step"] + 1)


def test_equal_names_of_two_terms_are_told_apart():
    class Other(Logs):
        pass

    metrics = federation(Algorithm(Logs(), Other())).train_round()
    assert metrics["term/Logs.step"] == metrics["term/Other.step"] == expected(0)["term/step"]


@pytest.mark.parametrize(
    ("hook", "name", "value", "message"),
    [
        ("gradient", "other", 1.0, "gradient logs 'other', but can log step"),
        ("update", "step", 1.0, "update logs 'step', but can log nothing"),
        ("gradient", "step", torch.ones(2), r"shape \(2,\): it is one number"),
    ],
)
def test_what_cannot_be_logged_is_refused(hook, name, value, message):
    def logging(self, first, second, v):
        v.log(name, value)
        return second if hook == "gradient" else first

    wrong = term(logs=("step",), **{hook: logging})
    with pytest.raises(TermError, match=message):
        federation(Algorithm(wrong))


HEAD, WHOLE = algorithms.fedsol(rho=0.5), algorithms.fedsol(rho=0.5, scope="all", proximal="ntd")


def trains_as_without_diagnostics(algorithm: Algorithm, executor: Any) -> None:
    given = {"executor": executor, "sampler": lambda *_: [0, 1, 4]}
    runs = [federation(hard(algorithm), diagnostics=asked, **given) for asked in (True, False)]
    found, nothing = (logged(run.train_round()) for run in runs)
    assert not any(distances(*runs).values())
    assert (found.keys(), nothing) == ({"term/cos", "term/proximal_loss", "term/strength"}, {})
    assert -1 <= found["term/cos"] <= 1
    assert 0 < found["term/strength"] < 1


@on_all_executors
def test_fedsol_logs_its_diagnostics_and_trains_as_without(executor):
    """Bit for bit, with dropout and BatchNorm."""
    trains_as_without_diagnostics(HEAD, executor)


@on_eager_executors
def test_fedsol_of_the_whole_model_logs_them_too(executor):
    trains_as_without_diagnostics(WHOLE, executor)


def test_fedsols_proximal_loss_is_the_distillation_loss():
    """0 at the first step, as the client has not moved; then positive. Teachers are evaluated."""
    plain = classifier(norm=False, dropout=0.0)
    first = federation(HEAD, clients=classification(), module=plain, diagnostics=True)
    first.clients.steps = 1
    metrics = first.train_round()
    assert metrics["term/proximal_loss"] == pytest.approx(0, abs=1e-12)
    assert isnan(metrics["term/cos"])  # no step counts
    assert federation(HEAD, diagnostics=True).train_round()["term/proximal_loss"] > 0
