"""Measures: each against plain PyTorch, on one rank and two, and none changes the training."""

import csv
from inspect import signature
from math import isfinite
from pathlib import Path
from typing import Any

import pytest
import torch
from executors import on_eager_executors
from lightning.fabric import Fabric
from measured import global_loss, measured, outputs, plain
from problems import (
    COHORTS,
    classification,
    distances,
    federation,
    hard,
    on_two_ranks,
    rows,
    server,
)
from torch import Tensor
from torch.nn import functional as F

from fl_lightning import Algorithm, DeviceDataset, Federation, algorithms
from fl_lightning.callbacks import (
    CALLBACKS,
    ClassAccuracy,
    ClientScores,
    Consistency,
    EvaluateModels,
    Gradients,
    LocalModels,
    Measure,
    PersonalScores,
    Sharpness,
    StateNorms,
    TrainingScores,
)
from fl_lightning.callbacks.scoring import TrainingLoss
from fl_lightning.executors import ClientResult
from fl_lightning.federation.sampling import BernoulliSampling


def samples(count: int = 11) -> DeviceDataset:
    """Of classes a and c, none of b."""
    g = torch.Generator().manual_seed(count)
    y = 2 * torch.randint(2, (count,), generator=g)
    x = torch.randn(count, 6, generator=g, dtype=torch.float64) + y[:, None]
    return DeviceDataset(x, y, ("a", "b", "c"))


def every_measure(folder: Path) -> list[Measure]:
    """Those that need no term and no task, in every round."""
    given = {"every": 1, "client": 2, "test": samples(), "folder": folder}
    others = EvaluateModels, ClientScores, PersonalScores
    kinds = [c for c in CALLBACKS.values() if issubclass(c, Measure) and c not in others]
    return [
        kind(**{name: given[name] for name in signature(kind).parameters if name in given})
        for kind in kinds
    ]


@on_eager_executors
def test_measures_do_not_change_the_training(executor, tmp_path):
    """Bit for bit, with dropout, BatchNorm, momentum, and a method that keeps states."""
    algorithm = hard(algorithms.fedlesam_d())
    found = every_measure(tmp_path)
    run, metrics = measured(*found, algorithm=algorithm, executor=executor, diagnostics=True)
    plain, without = measured(algorithm=algorithm, executor=executor)
    assert not any(distances(run, plain).values())
    for mine, theirs in zip(metrics, without, strict=True):
        assert all(mine[tag] == value for tag, value in theirs.items() if "time/" not in tag)
        assert len(mine) > len(theirs) + 10


def test_gradients_are_the_steps_of_the_cohort_times_those_of_a_step():
    run, metrics = measured(Gradients(), algorithm=algorithms.fedsam(), rounds=1)
    steps = sum(run.clients.num_steps(client) for client in COHORTS[0])
    assert metrics[0]["client/gradients"] == 2 * steps


def test_ranks_share_what_is_measured(tmp_path):
    def scalars(fabric: Fabric) -> dict[str, float]:
        _, metrics = measured(
            *every_measure(tmp_path), algorithm=algorithms.feddyn(), fabric=fabric, rounds=2
        )
        return {tag: value for tag, value in metrics[-1].items() if "time/" not in tag}

    alone = scalars(Fabric(accelerator="cpu", devices=1))
    for rank in on_two_ranks(scalars):
        assert rank == pytest.approx(alone, rel=1e-5, abs=1e-9)
    assert {tag.split("/")[0] for tag in alone} >= {"consistency", "dual", "sharpness", "test"}


def test_training_scores_and_sharpness():
    run, metrics = measured(TrainingScores(), Sharpness(rho=0.3))
    w, data = run.w.detach().requires_grad_(), run.clients.dataset
    loss = global_loss(run, w)
    (gradient,), loss = torch.autograd.grad(loss, w), loss.detach()
    right = run.load_global()(data.x).argmax(1) == data.y
    assert metrics[-1]["train/global_accuracy"] == pytest.approx(float(right.double().mean()))
    assert metrics[-1]["train/global_loss"] == pytest.approx(float(loss), rel=1e-5)
    there = global_loss(run, w.detach() + 0.3 * gradient / gradient.norm())
    assert metrics[-1]["sharpness/global"] == pytest.approx(float(there - loss), rel=1e-9)


def test_training_samples_are_those_of_the_clients():
    """Samples that no client holds, such as a validation part, do not count."""
    clients = classification()
    clients.partition = clients.partition.subset(torch.tensor([0, 3]))
    run = federation(Algorithm(), clients=clients, sampler=lambda *_: [0])
    held = torch.cat([clients.partition[0], clients.partition[1]])
    out = run.load_global()(clients.dataset.x[held])
    expected = F.cross_entropy(out, clients.dataset.y[held]).item()
    assert TrainingLoss(run)(run.w.detach()) == pytest.approx(expected, rel=1e-9)
    assert TrainingLoss(run, samples=5)(run.w.detach()) != pytest.approx(expected, rel=1e-3)


def test_the_global_loss_weighs_targets_alike_on_any_number_of_ranks():
    """Of several batches, in one of which no target counts; its sums are exact if asked for."""

    def found(fabric: Fabric) -> tuple[float, list[float]]:
        clients = classification([50] * 6)
        run = federation(Algorithm(), clients=clients, fabric=fabric, deterministic=True)
        loss, w = TrainingLoss(run), run.w.detach()
        for batch, kept in zip(loss._batches, (30, 100, 0), strict=True):
            clients.dataset.y[batch[kept:]] = -100
        loss = TrainingLoss(run)
        return loss(w), loss.gradient(w).tolist()

    alone = found(Fabric(accelerator="cpu", devices=1))
    assert on_two_ranks(found) == (alone, alone)
    assert isfinite(alone[0])


@pytest.mark.parametrize("ignored", [-100, 1])
def test_accuracy_by_class_and_over_clients(ignored: int):
    """Client 5 holds the class without a test sample, or whose samples do not count, alone."""
    test, clients = samples(), classification()
    clients.dataset.y[clients.partition[5]] = 1
    if ignored == 1:
        test.y[:3] = 1
    loss = torch.nn.CrossEntropyLoss(ignore_index=ignored)
    run, metrics = measured(ClassAccuracy(test), clients=clients, loss=loss)
    right = run.load_global()(test.x).argmax(1) == test.y
    by_class = [float(right[test.y == c].double().mean()) for c in (0, 2)]
    found = metrics[-1]
    assert (found["test/class_a"], found["test/class_c"]) == pytest.approx(tuple(by_class))
    assert "test/class_b" not in found  # it has no test sample
    counts = run.clients.class_counts[:5, [0, 2]].double()
    of_client = (counts @ torch.tensor(by_class).double() / counts.sum(1)).tolist()
    assert found["test/clients"] == pytest.approx(sum(of_client) / 5)
    assert found["test/clients_worst10"] == pytest.approx(min(of_client))


class Models:
    """Keeps the clients' last models, by client, and the models that they received, by round."""

    def __init__(self) -> None:
        self.rounds: list[dict[int, Tensor]] = []
        self.received: list[Tensor] = []

    def on_round_start(self, federation: Federation, cohort: Any) -> None:
        self.rounds.append({})
        self.received.append(federation.w.detach().clone())

    def on_client_end(self, federation: Federation, client: int, result: ClientResult) -> None:
        self.rounds[-1][client] = (result.origin + result.progress).clone()


@on_eager_executors
def test_local_models_on_the_test_set_and_forgetting(executor):
    test, models = samples(40), Models()
    run, metrics = measured(LocalModels(test, 1), models, module=plain(), executor=executor)

    def accuracy(w: Tensor) -> float:
        return float((outputs(run, w, test.x).argmax(1) == test.y).double().mean())

    for found, clients, received in zip(metrics, models.rounds, models.received, strict=True):
        local = torch.tensor([*map(accuracy, clients.values())], dtype=torch.float64)
        assert found["test/local"] == pytest.approx(float(local.mean()), rel=1e-12)
        assert found["test/local_std"] == pytest.approx(float(local.std(correction=0)))
        assert found["test/forgetting"] == pytest.approx(accuracy(received) - float(local.mean()))


def test_consistency_follows_the_visits_of_one_client(tmp_path):
    """Client 2 takes part in rounds 1 and 2, not in round 3."""
    models = Models()
    run, metrics = measured(Consistency(2, folder=tmp_path), models, module=plain())
    index = run.clients.partition[2]
    x, y = run.clients.dataset.x[index], run.clients.dataset.y[index]

    first, second = (
        float(F.cross_entropy(outputs(run, models.rounds[k][2], x), y)) for k in (0, 1)
    )
    both = [float(global_loss(run, w)) for w in models.received[1:]]
    assert metrics[1]["consistency/local"] == pytest.approx(second - first, rel=1e-4)
    assert metrics[1]["consistency/global"] == pytest.approx(both[1] - both[0], rel=1e-6)
    assert not any("consistency/local" in metrics[k] for k in (0, 2))
    with (tmp_path / "consistency.csv").open() as file:
        assert [row["round"] for row in csv.DictReader(file)] == ["2"]


def test_consistency_continues_in_a_resumed_run(tmp_path):
    whole, first, again = (Consistency(0, folder=tmp_path) for _ in range(3))
    _, metrics = measured(whole, module=plain())
    measured(first, module=plain(), rounds=1)
    again.load_state_dict(first.state_dict())
    _, rest = measured(again, module=plain(), rounds=3)  # the same rounds from the first on
    assert again.last == whole.last
    other = Consistency(1, folder=tmp_path)
    other.load_state_dict(first.state_dict())
    assert other.last is None  # of another client
    assert rest[0]["consistency/local"] == pytest.approx(0, abs=1e-12)
    assert "consistency/local" not in metrics[0]


def test_a_client_that_does_not_exist_cannot_be_followed(tmp_path):
    with pytest.raises(ValueError, match="client 6 cannot be measured: the last one is 5"):
        measured(Consistency(6, folder=tmp_path))


def test_norms_of_duals_are_those_of_the_cohorts_states():
    run, metrics = measured(StateNorms(2), algorithm=algorithms.feddyn())  # and after the last
    expected = rows(run, "h_i")[COHORTS[2]].norm(dim=1).mean()
    assert metrics[-1]["dual/h_i"] == pytest.approx(float(expected))
    assert metrics[-1]["dual/h"] == pytest.approx(float(server(run, "h").norm()))


def test_a_method_without_states_has_no_norms_of_duals():
    _, metrics = measured(StateNorms(1), algorithm=algorithms.fedavg())
    assert not [tag for tag in metrics[-1] if tag.startswith("dual/")]


@pytest.mark.parametrize(
    "measure", [StateNorms(1), EvaluateModels(samples(), every=1), LocalModels(samples(), 1)]
)
def test_a_round_without_clients_is_measured(measure):
    algorithm = algorithms.scaffold().with_outer_terms(*getattr(measure, "terms", ()))
    nobody = BernoulliSampling(0.002, may_be_empty=True)
    run, metrics = measured(measure, algorithm=algorithm, sampler=nobody, rounds=1)
    assert "dual/c_i" not in metrics[0]
    if isinstance(measure, EvaluateModels):
        assert server(run, "mean_cohort").equal(run.w.detach())
    elif isinstance(measure, LocalModels):
        assert "test/local" not in metrics[0]
    else:
        assert metrics[0]["dual/c"] == 0


def test_the_cohorts_mean_model_has_the_methods_weights():
    """So it is FedAvg's global model, whose clients weigh by their samples."""
    algorithm = algorithms.fedavg().with_outer_terms(*EvaluateModels(samples()).terms)
    run, _ = measured(algorithm=algorithm, module=plain())
    torch.testing.assert_close(server(run, "mean_cohort"), run.w.detach(), rtol=0, atol=1e-12)


@on_eager_executors
def test_the_cohorts_and_all_clients_mean_models_are_scored(executor):
    test, models = samples(40), Models()
    measure = EvaluateModels(test)
    algorithm = algorithms.feddyn().with_outer_terms(*measure.terms)
    run, metrics = measured(measure, models, algorithm=algorithm, module=plain(), executor=executor)
    last = dict.fromkeys(range(6), run.server.initial_w)
    for clients in models.rounds:
        last |= clients
    means = {"cohort": models.rounds[-1], "clients": last}
    for name, kept in means.items():
        w = torch.stack([*kept.values()]).mean(0)
        torch.testing.assert_close(server(run, f"mean_{name}"), w, rtol=0, atol=1e-12)
        loss = float(F.cross_entropy(outputs(run, w, test.x), test.y))
        assert metrics[-1][f"test/loss@{name}"] == pytest.approx(loss, rel=1e-5)
    bare, _ = measured(algorithm=algorithms.feddyn(), module=plain(), executor=executor)
    assert run.w.equal(bare.w)
    assert run.cost == bare.cost  # a measure sends nothing
