"""Methods against their authors' code, written again on flat weights of the golden problem.

Each loop names the files and lines that it follows, and calls nothing of the package.
"""

from collections.abc import Iterator
from typing import Any

import pytest
import ragged_problem as ragged
import torch
from problems import EXECUTORS, round_after_round
from ragged_problem import COHORTS, START, batches, loss, scores
from torch import Tensor
from torch.func import grad
from torch.nn.functional import kl_div, log_softmax, softmax

from fl_lightning import Algorithm, algorithms

LR = 0.1
Models = Iterator[Tensor]


def assert_path(algorithm: Algorithm, models: Models, **options: Any) -> None:
    """Our global model is the loop's after each round."""
    run = ragged.ragged_federation(algorithm, LR, **options)
    for expected in models:
        found = round_after_round(run, 1).w.detach()
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def mimelite(beta: float) -> Models:
    """google/fedjax c57ee19, `fedjax/algorithms/mime_lite.py` 51-60 and 131-166.

    Its `optimizers.sgd(momentum=beta)` steps along g + beta m. Here a client's full gradient is the
    mean over its batches.
    """
    w, m = START, torch.zeros_like(START)
    for S in COHORTS:
        moves, gradients = [], []
        for i in S:
            u = w
            for batch in batches(i):
                u = u - (1 - beta) * LR * (grad(loss)(u, *batch) + beta * m)
            moves.append(u - w)
            gradients.append(torch.stack([grad(loss)(w, *batch) for batch in batches(i)]).mean(0))
        w = w + torch.stack(moves).mean(0)
        m = torch.stack(gradients).mean(0) + beta * m
        yield w


@EXECUTORS
def test_mimelite(executor: Any) -> None:
    assert_path(algorithms.mimelite(0.7), mimelite(0.7), executor=executor)


def adabest(mu: float, beta: float) -> Models:
    """varno/fedsim 5e2eba6, `fedsim/distributed/centralized/training/adabest.py` 110-196.

    With mu as in the paper, which the code divides by about the steps of an epoch.
    """
    w = average = START
    h: dict[int, Tensor] = {}
    last: dict[int, int] = {}
    for t, S in enumerate(COHORTS):
        models = []
        for i in S:
            u = w
            for batch in batches(i):
                u = u - LR * (grad(loss)(u, *batch) - mu * h.get(i, torch.zeros_like(w)))
            models.append(u)
            h[i] = h[i] / (t - last[i]) + w - u if i in h else w - u
            last[i] = t
        before, average = average, torch.stack(models).mean(0)
        w = average - beta * (before - average)
        yield w
    assert len(last) < sum(map(len, COHORTS))  # some came again


@EXECUTORS
def test_adabest(executor: Any) -> None:
    assert_path(algorithms.adabest(0.3, 0.6), adabest(0.3, 0.6), executor=executor)


def fedgkd(gamma: float, buffer: int, tau: float) -> Models:
    """CGCL-codes/FedGKD 72e7bac, `pcode/masters/master_fedgkd.py` 36-55."""
    w, kept = START, list[Tensor]()
    for S in COHORTS:
        models = []
        for i in S:
            u = w
            for batch in batches(i):
                task = grad(loss)(u, *batch)
                taught = grad(from_teacher)(u, sum(kept) / len(kept), tau, *batch) if kept else 0
                u = u - LR * (task + gamma * taught)
            models.append(u)
        w = torch.stack(models).mean(0)
        kept = [*kept, w][-buffer:]
        yield w


def from_teacher(u: Tensor, teacher: Tensor, tau: float, x: Tensor, y: Tensor) -> Tensor:
    """`pcode/workers/worker_fedgkd.py` 101-132."""
    student = log_softmax(scores(u, x) / tau, 1)
    goal = softmax(scores(teacher, x) / tau, 1)
    return tau * tau * kl_div(student, goal, reduction="batchmean")


@EXECUTORS
@pytest.mark.parametrize("models", [1, 3])
def test_fedgkd(models: int, executor: Any) -> None:
    expected = fedgkd(0.8, models, 2.0)
    assert_path(algorithms.fedgkd(0.8, models, 2.0), expected, executor=executor)
