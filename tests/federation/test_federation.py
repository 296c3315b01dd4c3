"""The way of a round, its scalars, and what the constructor leaves to `prepare`."""

import builtins
import gc
import io
import os
import tempfile
from functools import partial
from statistics import fmean
from typing import Any

import pytest
import torch
from lightning.fabric import Fabric
from problems import (
    COHORTS,
    EXECUTORS,
    SIZES,
    Left,
    classification,
    classifier,
    distances,
    federation,
    hard,
    rows,
)
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils import parameters_to_vector
from torch.optim import SGD

from fl_lightning import Algorithm, Federation, Term, UserError, algorithms, by_size, uniform
from fl_lightning.algorithms.modifiers import relaxed
from fl_lightning.data import Partition
from fl_lightning.executors import ClientResult
from fl_lightning.terms import SAM


def forbidden(*_, **__):
    raise AssertionError("not before prepare()")


def test_the_constructor_runs_no_collective_opens_no_file_and_evaluates_no_model(
    fabric, tmp_path, monkeypatch
):
    module = classifier()
    with monkeypatch.context() as patch:
        for name in ("all_reduce", "all_gather", "broadcast", "barrier"):
            patch.setattr(Fabric, name, forbidden)
        patch.setattr(Fabric, "world_size", 2)
        for owner, name in [(os, "open"), (os, "mkdir"), (io, "open"), (builtins, "open")]:
            patch.setattr(owner, name, forbidden)
        patch.setattr(module, "forward", forbidden)
        options = {"fabric": fabric, "module": module, "state_dir": tmp_path / "rows"}
        run = federation(algorithms.scaffold(), **options)
        with pytest.raises(AssertionError, match="not before prepare"):
            run.prepare()
    run.train_round()
    run.store.retain()
    assert (tmp_path / "rows").exists()


def one_round(algorithm: Algorithm, executor: Any) -> tuple[Federation, dict[str, float]]:
    run = federation(algorithm, module=classifier(norm=False, dropout=0.0), executor=executor)
    return run, run.train_round()


def test_after_fit_the_module_is_the_global_model_also_after_an_error():
    module = classifier(norm=False, dropout=0.0)
    run = federation(Algorithm(), module=module, sampler=lambda *of: [[0, 2], [1, 3], []][of[2]])
    with pytest.raises(UserError, match=r"round 3 of 3: .*<lambda> gave the cohort \[\]"):
        run.fit()
    assert parameters_to_vector(module.parameters()).equal(run.w)


@EXECUTORS
@pytest.mark.parametrize("weight", [uniform, by_size])
def test_a_round_is_what_plain_pytorch_computes(weight, executor):
    local = partial(SGD, lr=0.1, momentum=0.9, weight_decay=0.01)
    run, metrics = one_round(Algorithm(local=local, weight=weight), executor)
    models, data = [], classification()
    for client in COHORTS[0]:
        module, batches = classifier(norm=False, dropout=0.0), data.visit(client, 0)
        optimizer = local(module.parameters())
        for k, (x, y) in enumerate(batches):  # of two epochs
            optimizer.param_groups[0]["lr"] = 0.1 * 0.7 ** (2 * k // len(batches))
            optimizer.zero_grad()
            F.cross_entropy(module(x), y).backward()
            optimizer.step()
        models.append(parameters_to_vector(module.parameters()).detach())
    shares = torch.tensor([SIZES[i] if weight is by_size else 1.0 for i in COHORTS[0]]).double()
    shares, trained = shares / shares.sum(), torch.stack(models)
    mean = shares @ trained
    torch.testing.assert_close(run.w.detach(), mean, rtol=0, atol=1e-12)
    drift = shares @ (trained - mean).square().sum(1)
    assert metrics["client/drift"] == pytest.approx(float(drift), rel=1e-9)
    away = shares @ (trained - run.server.initial_w).norm(dim=1)
    assert metrics["client/distance"] == pytest.approx(float(away), rel=1e-9)
    pairs, both = torch.cdist(trained, trained).square(), torch.outer(shares, shares)
    apart = (both * pairs).sum() / (both.sum() - both.trace())
    assert metrics["client/pair_distance"] == pytest.approx(float(apart.sqrt()), rel=1e-6)
    moved = float((mean - run.server.initial_w).norm())
    assert metrics["server/update_norm"] == pytest.approx(moved, rel=1e-12)


@EXECUTORS
@pytest.mark.parametrize(
    "algorithm",
    [
        algorithms.fedavg().replace(weight=by_size),
        algorithms.feddyn().replace(weight=by_size),
        algorithms.fedacg().replace(weight=by_size),
        algorithms.fedinit(0.5).replace(weight=by_size),
        algorithms.local_only().replace(weight=by_size),
        relaxed(0.5).to(algorithms.scaffold().replace(weight=by_size)),
    ],
    ids=str,
)
def test_drift_is_measured_from_the_received_model_wherever_clients_start(algorithm, executor):
    run = federation(hard(algorithm.with_outer_terms(Left())), executor=executor)
    for cohort in COHORTS:
        drift = run.train_round()["client/drift"]
        shares = torch.tensor([SIZES[i] for i in cohort]).double()
        distances = (rows(run, "u")[cohort] - run.w.detach()).square().sum(1)
        assert drift == pytest.approx(float(shares @ distances / shares.sum()), rel=1e-9)


@pytest.mark.parametrize(("algorithm", "sent", "received"), [("scaffold", 2, 2), ("fedtoga", 1, 2)])
def test_the_scalars_of_a_round(algorithm, sent, received):
    """FedTOGA's clients receive Delta besides the model, and send the model alone."""
    run, metrics = federation(getattr(algorithms, algorithm)()), {}
    for round, cohort in enumerate(COHORTS):
        metrics = run.train_round()
        for name, vectors in (("uplink", sent), ("downlink", received)):
            # float64: vectors of 99 numbers like the model; BatchNorm's 16 + 1 buffers
            expected = (vectors * 99 * 8 + 17 * 8) / 1e6 * len(cohort)
            assert metrics[f"comm/{name}_mb"] == pytest.approx(expected)
        assert metrics["local/lr"] == pytest.approx(0.1 * 0.9**round)
    tags = "train/loss client/drift client/distance client/pair_distance server/update_norm "
    tags += "local/lr comm/uplink_mb comm/downlink_mb"
    assert metrics.keys() == {*tags.split(), "time/train_s", "time/aggregate_s"}


class Adds(Term):
    def gradient(self, oracle, w, v):
        return oracle.of(lambda b: b.loss + 5)(w)


@EXECUTORS
@pytest.mark.parametrize("terms", [(SAM(0.5),), (Adds(),)], ids=["SAM", "Adds"])
def test_the_training_loss_is_the_mean_task_loss_of_clients_and_steps(terms, executor):
    """With a learning rate that moves nothing, by evaluating the first model on every batch."""
    algorithm = Algorithm(*terms, local=partial(SGD, lr=1e-300), weight=by_size)
    run, metrics = one_round(algorithm, executor)
    module, data = classifier(norm=False, dropout=0.0), classification()
    means = [
        fmean(F.cross_entropy(module(x), y).item() for x, y in data.visit(client, 0))
        for client in COHORTS[0]
    ]
    assert metrics["train/loss"] == pytest.approx(fmean(means), rel=1e-12)
    assert run.w.equal(run.server.initial_w)


class Listener:
    def __init__(self) -> None:
        self.heard: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("on_") or "setup" in name:
            raise AttributeError(name)
        return partial(self.hear, name)

    def hear(self, name: str, federation: Federation, metrics: Any = None, **given: Any) -> None:
        cohort = COHORTS[federation.round % len(COHORTS)]
        if name == "on_round_start":
            assert given == {"cohort": cohort}
        if name != "on_client_end":
            self.heard.append(f"{name} {federation.round}")
        elif given["client"] == cohort[0]:  # the clients come in any order
            assert isinstance(given["result"], ClientResult)
            self.heard.append(name)
        if name == "on_round_logged":
            assert {"time/evaluate_s", "time/round_s", "train/loss"} <= metrics.keys()


def test_fit_runs_the_remaining_rounds_and_calls_the_callbacks():
    listener = Listener()
    run = federation(Algorithm(), fabric=Fabric(accelerator="cpu", devices=1, callbacks=[listener]))
    run.request_stop()
    run.fit()
    assert (run.round, listener.heard[0]) == (1, "on_fit_start 0")
    listener.heard.clear()
    run.fit()
    second = "on_round_start 1", "on_client_end", "on_round_end 2", "on_round_logged 2"
    third = "on_round_start 2", "on_client_end", "on_round_end 3", "on_last_round_end 3"
    ends = "on_round_logged 3", "on_fit_end 3"
    assert listener.heard == ["on_fit_start 1", *second, *third, *ends]
    run.fit()
    assert run.round == 3


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (torch.zeros(5), r"not all zero, not tensor\(\[0., 0."),
        (torch.tensor([1.0, -1.0, 1, 1, 1]), r"not negative .*-1[.]"),
        (torch.tensor([1.0, torch.nan, 1, 1, 1]), "finite, .*nan"),
        ([1.0] * 5, r"shape \(5,\), .* not \[1.0"),
        (torch.ones(6), r"shape \(5,\), .* not tensor\(\[1"),
    ],
)
def test_impossible_aggregation_weights_are_refused(weights, message):
    with pytest.raises(ValueError, match=f"aggregation weights .*{message}"):
        federation(Algorithm(weight=lambda cohort: weights)).train_round()


@EXECUTORS
def test_dropout_is_each_clients_each_rounds_and_each_seeds_own(executor):
    """Two clients with the same samples in the same order differ by their dropout alone."""
    clients = classification(shuffle=False)
    clients.partition = Partition.from_lists([range(10), range(10)])

    def model(client: int, round: int, dropout: float, seed: int = 0) -> Tensor:
        options = {"sampler": lambda *_: [client], "decays": False, "clients": clients}
        options["seed"] = seed
        module = classifier(norm=False, dropout=dropout)
        run = federation(Algorithm(), module=module, executor=executor, **options)
        run.server.round = round
        run.train_round()
        return run.w.detach()

    assert model(0, 0, 0.0).equal(model(1, 1, 0.0))
    assert not model(0, 0, 0.5).equal(model(1, 0, 0.5))
    assert not model(0, 0, 0.5).equal(model(0, 1, 0.5))
    assert not model(0, 0, 0.5).equal(model(0, 0, 0.5, seed=1))
    assert model(0, 0, 0.5).equal(model(0, 0, 0.5))


def test_a_reaction_to_divergence_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match=r"skip-client.*'ignore'"):
        federation(Algorithm(), on_divergence="ignore")


def test_a_temporary_client_store_goes_with_its_federation(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    run = federation(algorithms.scaffold(), client_state_memory=0)
    run.train_round()
    assert [file.name for file in tmp_path.rglob("*.rows")] == ["0.rows"]
    del run
    gc.collect()
    assert not list(tmp_path.iterdir())


@EXECUTORS
def test_an_evaluation_between_rounds_changes_nothing(executor):
    """Though it leaves the module in evaluation mode."""
    run, other = (federation(hard(Algorithm()), executor=executor) for _ in range(2))
    for _ in range(2):
        run.load_global()
        run.train_round()
        other.train_round()
    assert not any(distances(run, other).values())
