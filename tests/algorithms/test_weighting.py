"""Aggregation weights: by labels, by losses, and own ones; the papers' rules worked out by hand."""

from typing import Any

import numpy as np
import pytest
import torch
from executors import STACKED
from problems import close, federation, round_after_round, server, vec
from regressions import INPUTS, TARGETS, all_three, regression

from fl_lightning import Algorithm, algorithms
from fl_lightning.core.weighting import Cohort, Disco
from fl_lightning.terms.fairness import on_simplex


def cohort(sizes: list[float], *labels: list[int]) -> Cohort:
    return Cohort(vec(*sizes), torch.tensor(labels))


ONE_SKEWED = cohort([1, 3], [5, 5], [30, 0])
"""A quarter and three quarters of the samples; all of the discrepancy is the second client's."""


@pytest.mark.parametrize(
    ("a", "b", "weights"),
    [
        (0.5, 0.1, (0.25 + 0.1, 0.75 - 0.5 + 0.1)),
        (0.0, 0.1, (0.25 + 0.1, 0.75 + 0.1)),
        (1.0, 0.0, (0.25, 0)),  # not below zero
    ],
)
def test_a_skewed_client_weighs_less(a: float, b: float, weights: tuple[float, float]) -> None:
    close(Disco(a, b)(ONE_SKEWED), *weights)


def test_clients_with_uniform_labels_weigh_their_samples_and_nothing_is_divided_by_zero() -> None:
    close(Disco(0.5, 0.1)(cohort([1, 3], [4, 4], [9, 9])), 0.25 + 0.1, 0.75 + 0.1)


def test_where_no_weight_is_positive_samples_weigh() -> None:
    close(Disco(10.0, 0.0)(cohort([1, 3], [5, 0], [0, 30])), 0.25, 0.75)
    close(Disco(10.0, 0.1)(cohort([3], [5, 0])), 1.0)


def test_shares_of_labels_have_the_digits_of_sizes() -> None:
    """Quotients of whole numbers are float32."""

    def by_first_label(cohort: Cohort) -> torch.Tensor:
        return cohort.labels[:, 0] / cohort.labels.sum(1)

    run = federation(Algorithm(weight=by_first_label))
    counts = run.clients.class_counts.double()
    shares = counts[:2, 0] / counts[:2].sum(1)
    expected = (shares / shares.mean()).tolist()
    assert run.local_training.weights([0, 1]) == pytest.approx(expected, rel=1e-14)


C = algorithms
X, Y = np.array(INPUTS), np.array(TARGETS, dtype=float)
ETA, STEPS = 0.1, 3


def loss(w: Any, i: int) -> float:
    return float(0.5 * np.mean((X[i] @ w - Y[i]) ** 2))


def local(w: Any, i: int) -> Any:
    for _ in range(STEPS):
        w = w - ETA * X[i].T @ (X[i] @ w - Y[i]) / 2
    return w


def after(algorithm: Algorithm, rounds: int = 3) -> Any:
    run = regression(algorithm, steps=STEPS, lr=ETA, sampler=all_three, executor=STACKED)
    return round_after_round(run, rounds)


@pytest.mark.parametrize("q", [0.5, 1.0, 3.0])
def test_qffl_by_hand(q: float) -> None:
    w = np.zeros(2)
    for _ in range(3):
        weights = np.array([loss(w, i) ** q for i in range(3)])
        w = w + sum(a * (local(w, i) - w) for i, a in enumerate(weights)) / weights.sum()
    torch.testing.assert_close(after(C.qffl(q)).w.detach(), vec(*w), rtol=0, atol=1e-8)


@pytest.mark.parametrize("q", [0.5, 1.0, 3.0])
def test_qfedavg_by_hand(q: float) -> None:
    """The paper's Algorithm 2, with the norms of gradients that it has."""
    w, lipschitz = np.zeros(2), 1 / ETA
    for _ in range(3):
        deltas, hs = [], []
        for i in range(3):
            gradient, f = lipschitz * (w - local(w, i)), loss(w, i)
            deltas.append(f**q * gradient)
            hs.append(q * f ** (q - 1) * gradient @ gradient + lipschitz * f**q)
        w = w - sum(deltas) / sum(hs)
    torch.testing.assert_close(after(C.qfedavg(q)).w.detach(), vec(*w), rtol=0, atol=1e-8)


def projected(y: Any) -> Any:
    """The projection to the simplex by sorting (Duchi et al., 2008)."""
    u = np.sort(y)[::-1]
    shifts = (np.cumsum(u) - 1) / np.arange(1, len(u) + 1)
    return np.maximum(y - shifts[np.nonzero(u > shifts)[0][-1]], 0)


def test_afl_by_hand() -> None:
    """The weights of a round are those before its losses count."""
    w, weights = np.zeros(2), np.full(3, 1 / 3)
    for _ in range(5):
        losses = np.array([loss(w, i) for i in range(3)])
        w = w + sum(a * (local(w, i) - w) for i, a in enumerate(weights))
        weights = projected(weights + 0.05 * losses)
    run = after(C.afl(step=0.05), 5)
    torch.testing.assert_close(run.w.detach(), vec(*w), rtol=0, atol=1e-12)
    torch.testing.assert_close(server(run, "lam"), vec(*weights), rtol=0, atol=1e-12)
    assert np.ptp(weights) > 0.1


@pytest.mark.parametrize("size", [1, 2, 7, 100])
def test_the_nearest_point_of_the_simplex(size: int) -> None:
    draws = torch.Generator().manual_seed(size)
    for scale in (1e-3, 1.0, 1e3):
        y = scale * torch.randn(size, generator=draws, dtype=torch.float64)
        torch.testing.assert_close(on_simplex(y), vec(*projected(y.numpy())), rtol=0, atol=1e-9)


def test_a_cohort_without_weight_moves_afls_weights_alone() -> None:
    """Client 2 has all the weight, and the others take part."""
    run = federation(C.afl(step=0.5), sampler=lambda num_clients, seed, round: [0, 1])
    lam, w = server(run, "lam"), run.w.detach().clone()
    lam.copy_(torch.arange(len(lam)) == 2)
    metrics = run.train_round()
    assert run.w.detach().equal(w)
    weights = server(run, "lam")
    assert [bool(x) for x in weights[:2] > 0] == [True, True]
    assert [metrics[name] for name in ("client/drift", "client/distance")] == [0, 0]


def test_fairness_lowers_the_largest_loss() -> None:
    """The mean gets worse for it."""
    runs = after(C.fedavg(), 20), after(C.qffl(3.0), 20), after(C.afl(0.01), 60)
    losses = [[loss(run.w.detach().numpy(), i) for i in range(3)] for run in runs]
    plain, *fair = (max(of_run) for of_run in losses)
    assert all(worst < plain - 0.1 for worst in fair)
