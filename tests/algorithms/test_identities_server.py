"""Starts and server steps: identities, torch's optimizers, and what the new model consists of."""

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from problems import Left, assert_same_unless, regression, rows
from torch import Tensor
from torch.optim import SGD, Adagrad

from fl_lightning import Algorithm, algorithms

C = algorithms
AVG, UNIFORM = C.fedavg(), C.fedavg(weighting="uniform")

SAME = {
    "FedAvgM without momentum is FedAvg": (C.fedavgm(beta=0.0), AVG, C.fedavgm()),
    "FedAvgM is FedAvg under torch's momentum": (
        C.fedavgm(beta=0.7, server_lr=0.5),
        AVG.replace(server=partial(SGD, lr=0.5, momentum=0.7)),
        C.fedavgm(server_lr=0.5),
    ),
    "FedAdagrad is FedAvg under torch's Adagrad": (
        C.fedadagrad(server_lr=0.03, tau=0.01),
        AVG.replace(server=partial(Adagrad, lr=0.03, initial_accumulator_value=0.01**2, eps=0.01)),
        C.fedadagrad(server_lr=0.03, tau=0.01, v0=0.1),
    ),
    "FedACG without momentum and pull is FedAvg": (
        C.fedacg(beta=0.0, prox=0.0),
        UNIFORM,
        C.fedacg(prox=0.0),
    ),
    "FedACG without momentum is FedProx, whose pull has a half": (
        C.fedacg(beta=0.0, prox=0.05),
        C.fedprox(mu=0.1, weighting="uniform"),
        C.fedacg(beta=0.0, prox=0.1),
    ),
    "FedInit without relaxation is FedAvg": (C.fedinit(beta=0.0), UNIFORM, C.fedinit()),
    "FedInit of models without relaxation is FedAvg": (
        C.fedinit(beta=0.0, server="models"),
        UNIFORM,
        C.fedinit(server="models"),
    ),
}


@pytest.mark.parametrize("claim", SAME)
def test_identity(claim: str) -> None:
    """The third algorithm is the first one with other coefficients: it differs."""
    assert_same_unless(*SAME[claim])


MADE_OF: dict[str, tuple[Algorithm, Callable[[Any], Tensor]]] = {
    "fedavg: the models": (UNIFORM, lambda x: x.u.mean(0)),
    "fedacg: the models, though they began elsewhere": (C.fedacg(), lambda x: x.u.mean(0)),
    "fedinit: the moves from where clients began": (
        C.fedinit(),
        lambda x: x.w + (x.u - x.began).mean(0),
    ),
    "fedinit: the models": (C.fedinit(server="models"), lambda x: x.u.mean(0)),
    "feddyn: the models and the mean dual of all": (
        C.feddyn(),
        lambda x: x.u.mean(0) + x.all_h.mean(0),
    ),
    "feddyn: amended models": (C.feddyn(dual="active"), lambda x: (x.u + x.h).mean(0)),
    "fedspeed: amended models": (C.fedspeed(dual="active"), lambda x: (x.u + x.h).mean(0)),
    "feddc: amended models": (C.feddc(dual="active"), lambda x: (x.u + x.h).mean(0)),
    "fedssg: the models and the mean memory of all": (
        C.fedssg(),
        lambda x: x.u.mean(0) + x.all_h.mean(0),
    ),
    "fedssg: amended models": (C.fedssg(aggregation="active"), lambda x: (x.u + x.h).mean(0)),
    "fedssg: amended models over N": (
        C.fedssg(aggregation="inverse_n"),
        lambda x: (x.u + x.h).sum(0) / 3,
    ),
    "fedvra: d/N of the moves, and the mean dual of all": (
        C.fedvra(d=1.2),
        lambda x: x.w + 1.2 / 3 * (x.u - x.w).sum(0) + x.all_h.mean(0),
    ),
}


@pytest.mark.parametrize("what", MADE_OF)
def test_the_new_model_is_made_of(what: str) -> None:
    """Three equally large clients, two of which take part."""
    algorithm, made_of = MADE_OF[what]
    run = regression(algorithm.with_outer_terms(Left()))
    dual = any("h_i" in term.client for term in algorithm.terms)
    for round in range(3):
        w, cohort = run.w.detach().clone(), run.sampler(3, 0, round)
        run.train_round()
        kept = {name: rows(run, name) for name in ("u", "began", *["h_i"] * dual)}
        x = SimpleNamespace(w=w, u=kept["u"][cohort], began=kept["began"][cohort])
        if dual:
            x.h, x.all_h = kept["h_i"][cohort], kept["h_i"]
        torch.testing.assert_close(run.w.detach(), made_of(x), rtol=0, atol=1e-12)


def test_a_relaxed_start_is_away_from_the_clients_last_model() -> None:
    run, last = (
        regression(C.fedinit(beta=0.5).with_outer_terms(Left())),
        torch.zeros(3, 2, dtype=torch.float64),
    )
    for round in range(3):
        w, cohort = run.w.detach().clone(), run.sampler(3, 0, round)
        run.train_round()
        torch.testing.assert_close(
            rows(run, "began")[cohort], (w + 0.5 * (w - last))[cohort], rtol=0, atol=1e-12
        )
        last = rows(run, "u")
