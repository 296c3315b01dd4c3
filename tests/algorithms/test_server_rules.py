"""FedExP and FedAMS as their authors' code computes them, FedVARP as its paper writes it.

All are written again in NumPy, on the problem of tests/golden with its cohorts of four of ten
clients. Then what the methods promise.
"""

from collections.abc import Iterator
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
import ragged_problem as ragged
import torch
from executors import STACKED
from problems import (
    EXECUTORS,
    assert_client_0_counts_as_absent,
    classification,
    everything,
    federation,
    round_after_round,
)
from regressions import all_three, regression
from torch import Tensor
from torch.func import grad
from torch.optim import SGD

from fl_lightning import Algorithm, algorithms
from fl_lightning.core.curves import exponential
from fl_lightning.core.weighting import by_size
from fl_lightning.terms import LMO, Extrapolation

C = algorithms
UNIFORM = Algorithm()
SIZES, START = np.array(ragged.SIZES), ragged.START.numpy()
ROUNDS, CLIENTS = ragged.COHORTS, len(SIZES)

Vector = np.ndarray
Models = Iterator[Vector]


def move(w: Vector, client: int, lr: float, steps: int | None = None) -> Vector:
    """u_i - w of two passes in batches of five, or of the first steps of them."""
    u = torch.from_numpy(w)
    for batch in ragged.batches(client)[:steps]:
        u = u - lr * grad(ragged.loss)(u, *batch)
    return u.numpy() - w


def path(algorithm: Algorithm, steps: int | None = None, **options: Any) -> list[Vector]:
    run = ragged.ragged_federation(algorithm, 0.1, steps=steps, **options)
    return [round_after_round(run, 1).w.detach().numpy().copy() for _ in ROUNDS]


@cache
def fedavg() -> list[Vector]:
    return path(UNIFORM)


def released_fedexp(eps: float, decay: float, steps: list[float]) -> Models:
    """Divyansh03/FedExP 34b05a2, main.py lines 307-425, with the steps it takes."""
    w, lr, p = START, 0.1, SIZES / SIZES.sum()
    for S in ROUNDS:
        lr, eps = decay * lr, decay * decay * eps
        moves = [move(w, i, lr) for i in S]
        p_sum = p[S].sum()
        average = sum(p_i * d for p_i, d in zip(p[S], moves, strict=True)) / p_sum
        squares = sum(p_i * np.linalg.norm(d) ** 2 for p_i, d in zip(p[S], moves, strict=True))
        own = 0.5 * squares / p_sum / (np.linalg.norm(average) ** 2 + len(S) * eps)
        steps.append(max(1, own))
        w = w + steps[-1] * average
        yield w


@EXECUTORS
def test_fedexp_equals_the_authors_code(executor: Any) -> None:
    eps, decay, steps = 1e-4, 0.9, list[float]()
    expected = [*released_fedexp(eps, decay, steps)]
    algorithm = C.fedexp(exponential(4 * decay**2 * eps, decay**2))
    algorithm = algorithm.replace(lr=exponential(0.1 * decay, decay), weight=by_size)
    found = path(algorithm, executor=executor)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
    assert 1 < sum(step > 1 for step in steps) < len(steps)


def released_fedams(lr: float, max_init: float, eps: float, floored: list[float]) -> Models:
    """jinghuichen/FedCAMS 95ccc9a, update.py lines 264-277, with the share at the floor."""
    w, beta1, beta2 = START, 0.9, 0.99
    m, v, largest = np.zeros_like(w), np.zeros_like(w), np.full_like(w, max_init)
    for t, S in enumerate(ROUNDS, start=1):
        delta = np.mean([move(w, i, 0.1) for i in S], axis=0)
        correction1, correction2 = 1 - beta1**t, 1 - beta2**t
        m = m * beta1 + (1 - beta1) * delta
        v = v * beta2 + (1 - beta2) * delta * delta
        largest = np.maximum(largest, v)
        floored.append(np.mean(largest == max_init))
        w = w + lr / correction1 * m / (np.sqrt(largest) / np.sqrt(correction2) + eps)
        yield w


def test_fedams_equals_the_authors_code_at_their_bias_correction() -> None:
    """At the eps of their command, 0, the correction is a factor on the server's rate."""
    floored = list[float]()
    expected = [*released_fedams(0.01, 1e-5, 0.0, floored)]

    def corrected(t: int, rounds: int) -> float:
        return float(0.01 * (1 - 0.99 ** (t + 1)) ** 0.5 / (1 - 0.9 ** (t + 1)))

    algorithm = C.fedams(eps=1e-5).replace(server_lr=corrected)
    np.testing.assert_allclose(path(algorithm), expected, rtol=0, atol=1e-12)
    assert all(0.1 < share < 0.9 for share in floored[2:])


def test_fedams_with_eps_in_the_sum_equals_option_2_of_the_paper() -> None:
    w, (beta1, beta2), eps, lr = START, (0.9, 0.99), 1e-3, 0.01
    m = v = largest = np.zeros_like(w)
    expected = []
    for S in ROUNDS:
        delta = np.mean([move(w, i, 0.1) for i in S], axis=0)
        m, v = beta1 * m + (1 - beta1) * delta, beta2 * v + (1 - beta2) * delta**2
        largest = np.maximum(largest, v)
        w = w + lr * m / (np.sqrt(largest) + eps)
        expected.append(w)
    assert (largest > v).any()
    algorithm = C.fedams(eps=eps, stabilization="sum").replace(server=partial(SGD, lr=lr))
    np.testing.assert_allclose(path(algorithm), expected, rtol=0, atol=1e-12)


def written_fedvarp(steps: int) -> Models:
    """Algorithm 2 of the paper, lines 5-14, at a server learning rate of 1."""
    w, lr = START, 0.1
    own, y = np.zeros((CLIENTS, len(w))), np.zeros_like(w)
    for S in ROUNDS:
        delta = {i: -move(w, i, lr, steps) / (lr * steps) for i in S}
        v = y + sum(delta[i] - own[i] for i in S) / len(S)
        y = y + sum(delta[i] - own[i] for i in S) / CLIENTS
        w = w - lr * steps * v
        for i in S:
            own[i] = delta[i]
        yield w


@EXECUTORS
def test_fedvarp_equals_the_papers_algorithm(executor: Any) -> None:
    found = path(C.fedvarp(), 2, executor=executor)
    np.testing.assert_allclose(found, [*written_fedvarp(2)], rtol=0, atol=1e-12)


def test_fedexp_is_fedavg_bit_for_bit_where_its_step_is_1() -> None:
    assert np.array_equal(path(C.fedexp(eps=1e9)), fedavg())
    assert not np.allclose(path(C.fedexp(eps=1e-4)), fedavg(), atol=1e-3)


def test_fedams_is_fedavg_bit_for_bit_at_a_floor_of_1_without_momentum() -> None:
    assert np.array_equal(path(C.fedams(beta1=0.0, eps=1.0)), fedavg())


def test_fedvarp_ends_where_fedavg_of_all_clients_does_though_few_are_drawn() -> None:
    def end(algorithm: Algorithm, **options: Any) -> Tensor:
        run = regression(algorithm, rounds=30, lr=0.2, executor=STACKED, **options)
        return round_after_round(run, 30).w

    varp, avg, optimum = end(C.fedvarp()), end(UNIFORM), end(UNIFORM, sampler=all_three)
    varp, avg = (varp - optimum).norm(), (avg - optimum).norm()
    assert varp < 1e-6 < 0.1 < avg


def test_fedexp_sees_the_moves_where_another_term_scales_their_mean() -> None:
    moves = {}
    for damp in (False, True):
        run = federation(Algorithm(LMO(damp=damp), Extrapolation(1e-6)))
        moves[damp] = round_after_round(run, 1).w.detach() - run.server.initial_w
    torch.testing.assert_close(moves[True], 5 / 6 * moves[False])  # five of six clients


@pytest.mark.parametrize("method", [C.fedexp(1e-6), C.fedvarp()], ids=["fedexp", "fedvarp"])
def test_a_skipped_client_has_no_weight(method: Algorithm) -> None:
    """Clients weigh by size, so that the others' weights are not 1 on average.

    After a step of two samples they disagree, which FedExP's step depends on.
    """
    clients = classification(batch_size=2, steps=1)
    assert_client_0_counts_as_absent(method.replace(weight=by_size), clients=clients)


def first_round_only(num_clients: int, seed: int, round: int) -> list[int]:
    return [] if round else [0, 2]


first_round_only.may_be_empty = True  # type: ignore[attr-defined]
MEMORIES = [
    *("fedacg", "fedadam", "fedadamw", "fedavgm", "fedbuff", "fedcm", "fedgf", "fedgkd"),
    *("fedgloss", "fedlesam", "fedmuon", "fedpac_sophia", "fedsmoo", "fedssg", "fedtoga"),
    *("fedvarp", "fedwmsam", "krum", "mimelite", "qfedavg", "scaffold"),
]


@pytest.mark.parametrize("name", MEMORIES)
def test_a_round_without_clients_leaves_the_model_and_what_the_server_keeps(name: str) -> None:
    run = federation(getattr(C, name)(), sampler=first_round_only, rounds=2)
    before = everything(round_after_round(run, 1))
    after = everything(round_after_round(run, 1))
    assert run.round == 2
    assert [part for part in before if not after[part].equal(before[part])] == []
