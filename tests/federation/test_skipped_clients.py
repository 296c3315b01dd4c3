"""`on_divergence="skip-client"`: a client whose training is not finite counts as absent."""

from functools import partial
from math import isfinite
from types import SimpleNamespace

import pytest
import torch
from diverging import COHORT, begin, kept
from lightning.fabric import Fabric
from problems import EXECUTORS, distances, rows, server
from torch.optim import Adam

from fl_lightning import Algorithm, DivergenceError, algorithms, by_size
from fl_lightning.callbacks import LayerStrength, StateNorms

WEIGHTED = {
    "uniform": Algorithm(),
    "by_size": Algorithm(weight=by_size),
    "fednova": algorithms.fednova(),
    "fedinit": algorithms.fedinit(server="models").replace(weight=by_size),
    "scaffold": algorithms.scaffold(),
    "feddyn": algorithms.feddyn(),
}


@EXECUTORS
@pytest.mark.parametrize(
    ("name", "deterministic"), [*((name, False) for name in WEIGHTED), ("by_size", True)]
)
def test_a_skipped_client_counts_as_absent(name, executor, deterministic):
    """In the model, BatchNorm, weights, messages and scalars."""
    options = {"executor": executor, "deterministic": deterministic}
    run, other = (begin(WEIGHTED[name], **options) for _ in range(2))
    for each in (run, other):
        each.train_round()
    run.clients.dataset.x[run.clients.partition[4]] = torch.nan
    other.sampler = lambda *_: [0, 1, 2, 5]
    metrics, expected = run.train_round(), other.train_round()
    assert max(distances(run, other).values()) < 1e-12
    assert (metrics.pop("client/skipped"), expected.pop("client/skipped")) == (1.0, 0.0)
    for tag in ("train/loss", "client/drift", "server/update_norm"):
        assert metrics[tag] == pytest.approx(expected[tag], rel=1e-10)


@EXECUTORS
def test_a_skipped_client_keeps_its_states_and_its_message_does_not_count(executor):
    """Client 4 diverges at its second visit, client 2 at its first."""
    run = begin(algorithms.scaffold(), executor=executor)
    run.sampler = lambda num_clients, seed, round: [0, 1, 4, 5] if round == 0 else COHORT
    run.train_round()
    before, variate = rows(run, "c_i"), server(run, "c")
    for client in (2, 4):
        run.clients.dataset.x[run.clients.partition[client]] = torch.inf
    run.train_round()
    after = rows(run, "c_i")
    assert [run.store.has(i) for i in range(6)] == [True, True, False, False, True, True]
    assert after[[2, 3, 4]].equal(before[[2, 3, 4]])
    moves = after[[0, 1, 5]] - before[[0, 1, 5]]
    assert (moves != 0).any(1).all()
    mean = 3 / 6 * moves.mean(0)  # the share of clients that count, times their mean message
    torch.testing.assert_close(server(run, "c"), variate + mean, rtol=0, atol=1e-12)


@EXECUTORS
def test_a_round_without_finite_clients_moves_nothing(executor):
    algorithm = algorithms.scaffold()
    algorithm.server = partial(Adam, lr=0.1)
    run = begin(algorithm, executor=executor)
    run.train_round()
    before = kept(run)
    run.clients.dataset.x[:] = torch.nan
    metrics = run.train_round()
    assert run.round == 2
    assert metrics["client/skipped"] == len(COHORT)
    assert metrics["server/update_norm"] == 0
    assert all(value.equal(before[name]) for name, value in kept(run).items())


def test_to_skip_every_client_is_an_error_also_where_clients_send_nothing():
    run = begin(algorithms.local_only(), *range(6))
    with pytest.raises(DivergenceError, match="every client of every round was skipped"):
        run.fit()


def test_measures_leave_skipped_clients_out():
    measured = list[dict[str, float]]()
    shows = SimpleNamespace(on_round_logged=lambda federation, metrics: measured.append(metrics))
    callbacks = [StateNorms(1), LayerStrength(1), shows]
    fabric = Fabric(accelerator="cpu", devices=1, callbacks=callbacks)
    run = begin(algorithms.scaffold(), COHORT[0], fabric=fabric)
    run.fit()
    assert [metrics["client/skipped"] for metrics in measured] == [1.0] * len(measured)
    kept = [v for m in measured for tag, v in m.items() if tag.startswith(("dual/", "strength/"))]
    assert kept
    assert all(map(isfinite, kept))
