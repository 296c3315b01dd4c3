"""Invariants of every round, and where perturbed gradients are taken over several visits."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from executors import STACKED
from problems import (
    EVERY_ALGORITHM,
    Left,
    Recorder,
    federation,
    hard,
    round_after_round,
    rows,
    server,
    without_addresses,
)
from regressions import all_three, mean_gradient, regression
from torch import Tensor

from fl_lightning import Algorithm, Term, algorithms
from fl_lightning.terms import SAM, Neighbor

C = algorithms
UNIFORM = Algorithm()
EXACT = {"rtol": 0, "atol": 1e-12}


MEANS = {"c": "scaffold; feddc; fedwmsam", "y": "fedvarp", "d": "fedssg; fednova, mean"}
MEANS |= {"h": "feddyn; fedvra; feddc; fedssg; fedgmt; fedgloss"}
"""States of the server that are the means of the clients'."""


@pytest.mark.parametrize(
    ("algorithm", "mean"), [(name, of) for of, names in MEANS.items() for name in names.split("; ")]
)
def test_the_server_keeps_the_mean_of_all_clients_and_the_idle_keep_theirs(
    algorithm: str, mean: str
) -> None:
    run = federation(hard(EVERY_ALGORITHM[algorithm]), executor=STACKED)
    for round in range(3):
        before = rows(run, f"{mean}_i")
        run.train_round()
        after = rows(run, f"{mean}_i")
        torch.testing.assert_close(server(run, mean), after.mean(0), **EXACT)
        changed = (after != before).any(1).nonzero().flatten().tolist()
        assert changed == run.sampler(6, 0, round)


@pytest.mark.parametrize("memory", ["change", "start"])
def test_fedadmms_server_keeps_the_mean_of_all_augmented_models(memory: Any) -> None:
    run = federation(hard(C.fedadmm(memory=memory)), executor=STACKED)
    for _ in range(3):
        run.train_round()
        mean = (rows(run, "w_i") + rows(run, "h_i")).mean(0)
        torch.testing.assert_close(run.w.detach(), mean, **EXACT)


def models(x: Any) -> Tensor:
    return x.u.mean(0)


def models_and_mean_dual(x: Any) -> Tensor:
    return x.u.mean(0) + x.all_h.mean(0)


def amended_models(x: Any) -> Tensor:
    return (x.u + x.h).mean(0)


MADE_OF: list[tuple[Algorithm, Callable[[Any], Tensor]]] = [
    (UNIFORM, models),
    (C.fedacg(), models),  # though they began elsewhere
    (C.fednsam(), models),
    (C.fedwmsam(), models),
    (C.fedgf(), models),
    (C.fedgloss(), lambda x: x.w + (x.u - x.began).mean(0) + x.all_h.mean(0)),
    (C.fedinit(server="models"), models),
    (C.fedinit(), lambda x: x.w + (x.u - x.began).mean(0)),
    (C.feddyn(), models_and_mean_dual),
    (C.feddyn(alpha=0.0), models_and_mean_dual),
    (C.fedssg(), models_and_mean_dual),
    (C.feddyn(dual="active"), amended_models),
    (C.feddc(dual="active"), amended_models),
    (C.fedssg(aggregation="active"), amended_models),
    (C.fedssg(aggregation="inverse_n"), lambda x: (x.u + x.h).sum(0) / 3),
    (C.fedvra(d=1.2), lambda x: x.w + 1.2 / 3 * (x.u - x.w).sum(0) + x.all_h.mean(0)),
]


@pytest.mark.parametrize(("algorithm", "made_of"), MADE_OF, ids=[str(a) for a, _ in MADE_OF])
def test_the_new_model_is_made_of(algorithm: Algorithm, made_of: Callable[[Any], Tensor]) -> None:
    """Three equally large clients, two of which take part."""
    run = regression(algorithm.with_outer_terms(Left()))
    dual = any("h_i" in term.client for term in algorithm.terms)
    for round in range(3):
        w, cohort = run.w.detach().clone(), run.sampler(3, 0, round)
        run.train_round()
        x = SimpleNamespace(w=w, u=rows(run, "u")[cohort], began=rows(run, "began")[cohort])
        if dual:
            x.h, x.all_h = rows(run, "h_i")[cohort], rows(run, "h_i")
        torch.testing.assert_close(run.w.detach(), made_of(x), **EXACT)


@pytest.mark.parametrize(
    ("algorithm", "exact"),
    [
        (C.fedtoga(rho=0.0, lam=1.0, beta=0.4), True),
        (C.feddyn(alpha=1.0), True),
        (C.fedvra(gamma=1.0, a=2.0), True),
        (C.feddc(alpha=1.0), True),
        (C.fedadmm(rho=1.0), True),
        (C.scaffold(), True),
        (C.fedavg(), False),
        (C.fedprox(mu=1.0), False),
    ],
    ids=str,
)
def test_duals_and_variates_reach_the_stationary_point_fedavg_misses(
    algorithm: Algorithm, exact: bool
) -> None:
    rounds = 50 if exact else 10
    run = regression(algorithm, rounds=rounds, lr=0.2, sampler=all_three, executor=STACKED)
    assert mean_gradient(run.w.detach()).norm() > 1
    distance = float(mean_gradient(round_after_round(run, rounds).w.detach()).norm())
    assert distance < 1e-9 if exact else distance > 0.1


def test_fedadmm_as_released_settles_off_that_point_by_its_way() -> None:
    algorithm = C.fedadmm(rho=1.0, eta=0.5, memory="none")
    run = regression(algorithm, rounds=60, lr=0.2, sampler=all_three, executor=STACKED)
    w = round_after_round(run, 60).w.detach()
    expected = -1.0 / (2 * 0.5) * (w - run.server.initial_w)
    assert expected.norm() > 0.1
    torch.testing.assert_close(mean_gradient(w), expected, rtol=0, atol=1e-9)


def test_fedtogas_lemmas_hold_on_recorded_gradients() -> None:
    """C.1: u - w = -a sum gamma_k gt_k + gamma a (h_i - beta Delta), and C.2 for h_i'.

    In the paper's letters a = 1/lam, and h_i = -lam times our displacement. Client 1 is alone in
    the second round, so that Delta is its movement over K eta.
    """
    lam, eta, K, beta = 0.5, 0.1, 4, 0.8
    log: list[tuple[Tensor, Tensor]] = []
    algorithm = Algorithm(Recorder(log), *C.fedtoga(rho=0.1, kappa=2.0, beta=beta, lam=lam).terms)
    run = regression(algorithm, sampler=lambda n, seed, round: [[0, 1, 2], [1]][round])
    run.train_round()
    anchor, Delta, h_i = run.w.detach().clone(), server(run, "Delta"), -lam * rows(run, "h_i")[1]
    log.clear()
    run.train_round()
    gammas = [eta * lam * (1 - eta * lam) ** (K - 1 - k) for k in range(K)]
    perturbed = [g for _, g in log[1::2]]  # each step asks twice
    gamma = sum(gammas)
    pushed = sum(gamma_k * g for gamma_k, g in zip(gammas, perturbed, strict=True))
    moved = -pushed / lam + gamma / lam * (h_i - beta * Delta)
    dual = (1 - gamma) * h_i + pushed + gamma * beta * Delta
    torch.testing.assert_close(-lam * rows(run, "h_i")[1], dual, **EXACT)
    torch.testing.assert_close(-server(run, "Delta") * K * eta, moved, **EXACT)
    torch.testing.assert_close(run.w.detach(), anchor + moved + server(run, "h"), **EXACT)


@pytest.mark.parametrize(
    ("term", "lengths"),
    [
        (C.fedlesam(rho=0.3).terms[0], [0, 0, 0, 0.3, 0.3, 0.3]),
        (Neighbor(SAM(0.3)), [0, 0.3, 0.3, 0, 0.3, 0.3]),
        (Neighbor(SAM(0.3), carry=True), [0, 0.3, 0.3, 0.3, 0.3, 0.3]),
        (Neighbor(SAM(0.3), fusion=True), [0.3] * 6),
    ],
    ids=without_addresses,
)
def test_a_perturbation_is_rho_long_once_there_is_a_past(term: Term, lengths: list[float]) -> None:
    """Three steps of two visits; the previous gradient is forgotten unless it is carried."""
    inside, outside = list[tuple[Tensor, Tensor]](), list[tuple[Tensor, Tensor]]()
    algorithm = Algorithm(Recorder(inside), term, Recorder(outside))
    run = regression(algorithm, steps=3, sampler=lambda *_: [1])
    run.prepare()  # which tries the algorithm on two samples
    inside.clear()
    outside.clear()
    round_after_round(run, 2)
    last = torch.stack([at for at, _ in inside[len(inside) // 6 - 1 :: len(inside) // 6]])
    e = (last - torch.stack([w for w, _ in outside])).norm(dim=1)
    assert e.tolist() == pytest.approx(lengths, abs=1e-9)
