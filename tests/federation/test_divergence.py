"""Clients whose training is not finite: stop, leave them out as absent, or continue."""

from dataclasses import dataclass
from functools import partial
from math import isfinite
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jobs
import pytest
import torch
from diverging import COHORT, begin, kept
from lightning.fabric import Fabric
from problems import EXECUTORS, distances, everything, hard, on_two_ranks, rows, server, trained
from refusals import scaffold
from torch.optim import SGD, Adam

from fl_lightning import Algorithm, DivergenceError, Term, algorithms, by_size, zeros
from fl_lightning.callbacks import LayerStrength, StateNorms
from fl_lightning.terms import TOGA

BOTH = pytest.mark.parametrize("deterministic", [False, True], ids=["plain", "exact"])
"""Both kinds of sums."""


@BOTH
@EXECUTORS
def test_stopping_names_round_clients_learning_rate_and_algorithm(executor, deterministic):
    options = {"on_divergence": "stop", "executor": executor, "deterministic": deterministic}
    run = begin(Algorithm(lr=lambda *_: 0.05), 1, 4, **options)
    before = run.w.detach().clone()
    message = r"round 1 of 3: the training of clients 1, 4 .*rate 0.05, Algorithm\(Clip"
    with pytest.raises(DivergenceError, match=message):
        run.fit()
    assert run.w.equal(before)


def test_a_server_that_diverges_is_named():
    algorithm = Algorithm(server=partial(SGD, lr=1e308))
    for mode in ("stop", "skip-client"):
        with pytest.raises(DivergenceError, match="round 1 of 3: the model is no longer finite"):
            begin(algorithm, on_divergence=mode).fit()


@dataclass(frozen=True)
class Mine(Term):
    """Spoils something: on a client, of those that have many samples."""

    what: str
    client = {"c_i": zeros, "best_i": lambda first, now: now.new_full((), torch.inf)}
    server = {"c": zeros}

    def report(self, w, v):
        spoiled = torch.where(v.size > 1.3, torch.nan, 0.0)  # clients 0 and 2
        v.best_i = v.best_i / 2
        v.c_i = v.c_i + (spoiled if self.what == "state" else 0)
        return (w.sum(), w - v.anchor + spoiled) if self.what == "message" else (w.sum(), w)

    def update(self, delta, mean, v):
        v.c = v.c + (torch.inf if self.what == "server's state" else 0)
        return delta / 0 if self.what == "update" else delta


SPOILED = {
    "message": "what Mine.report returned for clients 0, 2",
    "state": "the state 'c_i' that Mine keeps for clients 0, 2",
    "server's state": "the server's state 'c' of Mine",
    "update": "what the terms made of the mean update",
}


@EXECUTORS
@pytest.mark.parametrize(("what", "named"), SPOILED.items())
def test_what_a_term_spoils_is_named_apart_from_the_training(what, named, executor):
    """A state that begins as infinity may stay so."""
    begin(Algorithm(Mine("")), on_divergence="stop", executor=executor).fit()
    message = rf"^round 1 of 3: {named} is no .*\(Mine\(what={what}\).*division by zero"
    with pytest.raises(DivergenceError, match=message):
        begin(Algorithm(Mine(what)), on_divergence="stop", executor=executor).fit()


@EXECUTORS
@pytest.mark.parametrize("what", ["message", "state"])
def test_a_client_whose_message_or_state_is_spoiled_can_be_skipped(what, executor):
    run = begin(Algorithm(Mine(what)), executor=executor)
    assert run.train_round()["client/skipped"] == 2
    assert run.w.isfinite().all()
    assert rows(run, "c_i").isfinite().all()
    assert [run.store.has(i) for i in range(6)] == [False, True, False, False, True, True]


class Strict(Term):
    """Takes no update that is not finite, as decompositions of matrices do."""

    def update(self, delta, mean, v):
        if not delta.isfinite().all():
            raise ValueError("not finite")
        return delta


@pytest.mark.parametrize("terms", [[], [Strict()]], ids=["a step", "a term that raises"])
def test_the_server_is_as_it_was_after_a_round_that_stops_the_run(terms):
    algorithm = algorithms.scaffold().with_outer_terms(*terms)
    algorithm.server = partial(Adam, lr=0.1)
    run = begin(algorithm, on_divergence="stop")
    run.train_round()
    before = kept(run)
    run.clients.dataset.x[run.clients.partition[4]] = torch.nan
    with pytest.raises(DivergenceError, match="round 2 of 3: the training of client 4"):
        run.train_round()
    assert run.round == 1
    assert all(value.equal(before[name]) for name, value in kept(run).items())


class Late(Term):
    def update(self, delta, mean, v):
        if v.round == 1:
            raise RuntimeError("no update")
        return delta


def test_an_error_of_a_term_is_raised_where_no_client_diverged():
    run = begin(Algorithm(Late()), on_divergence="stop")
    with pytest.raises(RuntimeError, match="no update"):
        run.fit()


def test_finite_training_is_the_same_in_every_mode():
    algorithm = hard(algorithms.fedlesam_s())
    modes = "stop", "skip-client", "continue"
    first, *others = (trained(algorithm, on_divergence=mode) for mode in modes)
    assert not any(any(distances(first, other).values()) for other in others)


@BOTH
def test_continuing_keeps_the_states_of_diverged_clients(deterministic):
    options = {"on_divergence": "continue", "deterministic": deterministic}
    run = begin(algorithms.scaffold(), 4, **options)
    assert "client/skipped" not in run.train_round()
    assert [run.store.has(i) for i in range(6)] == [i in COHORT for i in range(6)]
    assert rows(run, "c_i").isnan().all(1).tolist() == [i == 4 for i in range(6)]
    run.fit()
    assert run.round == 3
    assert run.w.isnan().all()


def test_a_run_that_diverged_can_be_resumed_in_another_way(tmp_path, sentence):
    run, argv = tmp_path / "run", ("--rounds", "2", "--lr", "1e30")
    assert "round 1 of 2: the training of clients " in sentence(scaffold, run, *argv)
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["round-0.ckpt"]
    again = "--resume", "--on-divergence", "skip-client"
    every_client = "after round 2 of 2: every client of every round was skipped"
    assert every_client in sentence(scaffold, run, *argv, *again)
    table = jobs.results(run)["metrics"]
    assert [row["client/skipped"] for row in table] == ["4.0", "4.0"]
    assert table[0]["test/accuracy"] == table[1]["test/accuracy"]


def test_a_run_of_which_one_round_trained_is_no_error():
    run = begin(Algorithm(), *range(6), sampler=lambda n, seed, round: [round])
    run.clients.dataset.x[run.clients.partition[1]] = 0.5
    run.fit()
    assert not run.w.equal(run.server.initial_w)


@pytest.mark.parametrize("terms", [(), (TOGA(0.1),)], ids=["no term", "a term that reports"])
def test_a_method_whose_global_model_stays_is_no_error(terms):
    run = begin(algorithms.local_only().with_outer_terms(*terms))
    run.fit()
    assert run.w.equal(run.server.initial_w)


def two_rounds(fabric: Fabric, folder: Path) -> Any:
    """The error of a run that stops, and the scalars and states of one that skips."""
    with pytest.raises(DivergenceError, match="client 4") as error:
        begin(algorithms.scaffold(), 4, fabric=fabric, on_divergence="stop").train_round()
    run = begin(algorithms.scaffold(), 4, fabric=fabric, state_dir=folder)
    skipped = [run.train_round()["client/skipped"] for _ in range(2)]
    kept = {name: value.double().tolist() for name, value in everything(run).items()}
    return str(error.value), {"skipped": skipped, **kept}


def test_all_ranks_agree_on_who_diverged(tmp_path, fabric):
    first, second = on_two_ranks(partial(two_rounds, folder=tmp_path / "two"))
    assert first == second
    stopped, expected = two_rounds(fabric, tmp_path / "one")
    assert first[0] == stopped
    assert first[1].keys() == expected.keys()
    for name, value in expected.items():
        assert torch.allclose(torch.tensor(first[1][name]), torch.tensor(value), rtol=0, atol=1e-12)


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
