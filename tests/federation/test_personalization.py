"""Clients' own models: what fine-tuning is, what it leaves alone, and how it is scored."""

import csv
import os
import signal
from functools import partial
from pathlib import Path
from typing import Any
from weakref import ref

import pytest
import runs
import torch
from problems import classification, classifier, everything, federation, hard, rows
from refusals import scaffold
from torch import nn

from fl_lightning import (
    Algorithm,
    DeviceDataset,
    DivergenceError,
    Federation,
    SequentialExecutor,
    StackedExecutor,
    algorithms,
)
from fl_lightning.algorithms.registry import ALGORITHMS
from fl_lightning.callbacks import Personalization
from fl_lightning.core.vector import Layout
from fl_lightning.data import Partition, aligned
from fl_lightning.distributed.signals import EXIT_PREEMPTED
from fl_lightning.federation.fine_tuning import FineTuning

LR = 0.05

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning")


def trained(algorithm: Algorithm, **options: Any) -> Federation:
    run = federation(hard(algorithm), **options)
    for _ in range(run.rounds):
        run.train_round()
    return run


def alone(run: Federation, client: int, w: torch.Tensor, epochs: int) -> nn.Module:
    """A plain loop of SGD on one client's samples, by hand; dropout must be off."""
    module = classifier(norm=False, dropout=0.0)
    Layout(module).load(module, w)
    optimizer = torch.optim.SGD(module.parameters(), lr=LR, momentum=0.9, weight_decay=0.01)
    for x, y in run.clients.lasting(epochs).visit(client, run.round):
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(x), y).backward()
        optimizer.step()
    return module


@pytest.mark.parametrize("epochs", [1, 3])
def test_fine_tuning_is_plain_local_sgd_from_the_global_model(epochs: int) -> None:
    """Without the algorithm's terms and clipping, with the optimizer's momentum and decay."""
    run = trained(algorithms.scaffold(), module=classifier(norm=False, dropout=0.0))
    models = list(FineTuning(run, LR).models([1, 4], epochs))
    for client, (w, _) in zip([1, 4], models, strict=True):
        torch.testing.assert_close(
            w,
            Layout(by_hand := alone(run, client, run.w.detach(), epochs)).read(by_hand),
            rtol=0,
            atol=1e-12,
        )
        assert (w - run.w).norm() > 0.01


def test_rows_are_read_only_where_a_term_has_a_use_for_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = trained(algorithms.feddyn())
    monkeypatch.setattr(run.store, "read", None)
    assert torch.equal(run.personal(1), run.w)
    own = trained(algorithms.local_only())
    assert torch.equal(own.personal(1), rows(own, "w_i")[1])


def test_executors_agree_in_fine_tuning_with_batchnorm_and_dropout() -> None:
    one, several = (
        list(FineTuning(trained(algorithms.fedavg(), **options), LR).models(range(6), 2))
        for options in ({}, {"executor": partial(StackedExecutor, width=4)})
    )
    for (w, buffers), (other, others) in zip(one, several, strict=True):
        torch.testing.assert_close(w, other, rtol=0, atol=1e-10)
        torch.testing.assert_close(buffers, others, rtol=0, atol=1e-10)


@pytest.mark.parametrize("algorithm", ["fedavg", "fedbabu", "local_only", "scaffold"])
def test_fine_tuning_leaves_the_federation_as_it_was(algorithm: str) -> None:
    run = trained(ALGORITHMS[algorithm]())
    before = {name: kept.clone() for name, kept in everything(run).items()}
    list(FineTuning(run, LR).models(range(6), 1))
    after = everything(run)
    assert all(after[name].equal(kept) for name, kept in before.items())
    run.train_round()  # and it goes on
    assert not run.w.detach().equal(before["model"]) or algorithm == "local_only"


def test_fedbabu_trains_the_body_and_fine_tunes_the_head_too() -> None:
    module = classifier(norm=False, dropout=0.0)
    drawn = {name: p.detach().clone() for name, p in module.named_parameters()}
    run = trained(algorithms.fedbabu(), module=module)
    assert all(not name.startswith("outer") for name in run.layout.names)
    ((whole, _),) = FineTuning(run, LR).models([0], 0)
    ((tuned, _),) = FineTuning(run, LR).models([0], 1)
    layout = Layout(classifier(norm=False, dropout=0.0))
    for name in ("outer.weight", "outer.bias"):
        assert layout.named(whole)[name].equal(drawn[name])
        assert not layout.named(tuned)[name].equal(drawn[name])
    assert not layout.named(whole)["inner.weight"].equal(drawn["inner.weight"])


def test_fine_tuning_is_at_the_rate_of_the_next_round_or_at_one_of_its_own(tmp_path: Path) -> None:
    run = trained(algorithms.fedavg(), module=classifier(norm=False))
    assert FineTuning(run).lr == pytest.approx(0.1 * 0.9**3)
    metrics = Personalization(run.clients.dataset, (1,), tmp_path / "personal.csv", 1e-300).score(
        run
    )
    assert metrics["personal/accuracy_1"] == metrics["personal/accuracy_0"]
    assert (
        scored(run, tmp_path / "personal.csv")["personal/accuracy_1"]
        != metrics["personal/accuracy_0"]
    )


def test_dropout_in_fine_tuning_is_each_clients_own() -> None:
    """Two clients with the same samples in the same order."""
    clients = classification(shuffle=False)
    clients.partition = Partition.from_lists([range(10), range(10)])
    for dropout in (0.0, 0.5):
        run = federation(
            Algorithm(), module=classifier(norm=False, dropout=dropout), clients=clients
        )
        (one, _), (other, _) = FineTuning(run, LR).models([0, 1], 1)
        assert one.equal(other) == (dropout == 0)


def test_a_client_reads_its_own_model_with_its_own_samples() -> None:
    """Features are the head's inputs; the running statistics are the client's."""
    run = trained(algorithms.fedavg(), executor=partial(StackedExecutor, width=3))
    tuning, data = FineTuning(run, LR), run.clients.dataset
    for client, (w, buffers) in enumerate(tuning.models([0, 1, 2], 1)):
        own, index = tuning.personal_model(client, w, buffers), run.clients.partition[client]
        assert own.x.equal(data.x[index])
        assert own.y.equal(data.y[index])
        module = classifier().eval()
        module.load_state_dict({**Layout(module).named(w), **buffers})
        features, logits = own.look(data.x)
        torch.testing.assert_close(features.double(), module[:3](data.x), rtol=0, atol=1e-6)
        torch.testing.assert_close(logits.double(), module(data.x), rtol=0, atol=1e-6)


class Counting(FineTuning):
    """Counts the models with which clients begin."""

    begun: list[ref[torch.Tensor]]
    most = 0

    def _initial(self, client: int) -> torch.Tensor:
        w = super()._initial(client)
        self.begun.append(ref(w))
        self.most = max(self.most, sum(model() is not None for model in self.begun))
        return w


@pytest.mark.parametrize("epochs", [0, 1])
@pytest.mark.parametrize(
    ("width", "executor"), [(1, SequentialExecutor), (2, partial(StackedExecutor, width=2))]
)
def test_no_more_models_are_held_than_train_together(
    width: int, executor: Any, epochs: int
) -> None:
    tuning = Counting(federation(algorithms.fedavg(), executor=executor), LR)
    tuning.begun = []
    for model in tuning.models(range(6), epochs):
        del model
    assert len(tuning.begun) == 6
    assert tuning.most == (width if epochs else 1)


def test_local_only_brings_its_own_models() -> None:
    run = trained(algorithms.local_only())
    models = [w for w, _ in FineTuning(run, LR).models(range(6), 0)]
    torch.testing.assert_close(torch.stack(models), rows(run, "w_i"), rtol=0, atol=0)
    assert len({tuple(w.tolist()) for w in models}) == 6  # all took part


def scored(
    run: Federation, path: Path, epochs: tuple[int, ...] = (1, 2), **options: Any
) -> dict[str, float]:
    return Personalization(run.clients.dataset, epochs, path, LR, **options).score(run)


def test_a_client_is_scored_on_samples_in_its_own_proportions(tmp_path: Path) -> None:
    """Here the test set is the training set, and the scores are taken again by hand."""
    run = trained(algorithms.fedavg(), seed=3)
    metrics = scored(run, tmp_path / "personal.csv", samples=20)
    tests = aligned(run.clients.dataset.y, run.clients.class_counts, 20, run.seed)
    module, data, right = run.load_global(), run.clients.dataset, []
    for client in range(6):
        index = tests[client]
        right.append((module(data.x[index]).argmax(1) == data.y[index]).double().mean())
    expected = torch.stack(right)
    assert metrics["personal/accuracy_0"] == pytest.approx(expected.mean().item(), abs=1e-12)
    assert metrics["personal/std_0"] == pytest.approx(expected.std(correction=0).item(), abs=1e-12)
    with (tmp_path / "personal.csv").open() as file:
        table = list(csv.DictReader(file))
    assert [float(row["accuracy_0"]) for row in table] == pytest.approx(expected.tolist())
    assert [int(row["test_samples"]) for row in table] == tests.sizes.tolist()
    assert set(metrics) == {
        f"personal/{what}_{e}" for what in ("accuracy", "std") for e in (0, 1, 2)
    }


def test_neighbours_change_what_a_client_predicts(tmp_path: Path) -> None:
    """The test set is what clients hold: a client's nearest neighbour is the sample itself."""
    known = scored(
        trained(algorithms.knn_per(neighbours=1, mix=1.0), module=classifier(dropout=0.0)),
        tmp_path / "a.csv",
    )
    plain = scored(
        trained(algorithms.knn_per(mix=0.0), module=classifier(dropout=0.0)), tmp_path / "b.csv"
    )
    fedavg = scored(
        trained(algorithms.fedavg(), module=classifier(dropout=0.0)), tmp_path / "c.csv"
    )
    assert plain == fedavg
    assert known != plain


def test_no_epochs_of_fine_tuning_are_no_choice() -> None:
    data = DeviceDataset(torch.zeros(1, 2), torch.zeros(1, dtype=torch.int64), ("a",))
    with pytest.raises(ValueError, match="at least one epoch, not 0"):
        Personalization(data, (0,), Path("personal.csv"))


def test_lasting_changes_the_visits_and_nothing_else() -> None:
    data = classification(steps=3)
    longer = data.lasting(4)
    assert (data.num_steps(0), longer.num_steps(0)) == (3, 12)
    assert longer.digest == data.digest


# ---------------------------------------------------------------------- after the last round


FINE_TUNE = "--rounds", "3", "--checkpoint-every", "100", "--finetune-epochs", "1"


def raises(*_: Any) -> None:
    raise RuntimeError("bad luck")


def stops(score: Any, *args: Any) -> Any:
    os.kill(os.getpid(), signal.SIGTERM)
    return score(*args)


@pytest.mark.parametrize(
    ("ranks", "hit", "luck", "codes", "told"),
    [
        (1, 0, runs.die, [-9], "round 3/3"),
        (1, 0, raises, [2], "bad luck"),
        (
            1,
            0,
            stops,
            [EXIT_PREEMPTED],
            "stopped by SIGTERM after round 3 of 3, which is saved: ",
        ),
        (
            2,
            1,
            stops,
            [EXIT_PREEMPTED, 0],
            "stopped as another rank or a callback asked after round 3 of 3",
        ),
        (2, 1, raises, [2, 2], "bad luck"),
    ],
    ids=["killed", "raises", "signal", "signal on one of two", "raises on one of two"],
)
def test_a_failure_in_it_loses_no_round_and_a_resumed_run_repeats_it(
    ranks: int, hit: int, luck: Any, codes: list[int], told: str, tmp_path: Path
) -> None:
    """It comes after the last checkpoint; the scores stand in the row of the last round."""
    whole, folder = tmp_path / "whole", tmp_path / "run"
    assert runs.end(runs.begin(whole, *FINE_TUNE, ranks=ranks)) == [0] * ranks, runs.said(whole)
    prepare = runs.at_call(12 // ranks, Personalization, "_accuracy", luck, rank=hit)
    assert runs.end(runs.begin(folder, *FINE_TUNE, ranks=ranks, prepare=prepare)) == codes, (
        runs.said(folder)
    )
    assert told in runs.said(folder)
    assert (folder / "checkpoints" / "round-3.ckpt").exists()
    assert (folder / "model.pt").exists()
    assert not (folder / "personal.csv").exists()
    assert runs.end(runs.begin(folder, *FINE_TUNE, ranks=ranks)) == [0] * ranks, runs.said(folder)
    assert runs.results(folder) == runs.results(whole)
    assert runs.results(folder)["metrics"][-1]["personal/accuracy_1"]
    assert (folder / "personal.csv").read_text() == (whole / "personal.csv").read_text()
    assert runs.steps_in_tensorboard(folder) == [(1, 2, 3), (3,)]


def test_a_signal_in_the_last_round_leaves_it_for_a_resumption(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    prepare = runs.at_call(12, SequentialExecutor, "_visit", stops)
    assert runs.end(runs.begin(folder, *FINE_TUNE, prepare=prepare)) == [EXIT_PREEMPTED], runs.said(
        folder
    )
    assert not (folder / "personal.csv").exists()
    assert runs.end(runs.begin(folder, *FINE_TUNE)) == [0], runs.said(folder)
    assert (folder / "personal.csv").exists()


def test_a_request_to_stop_while_the_last_round_is_logged_leaves_it_too(tmp_path: Path) -> None:
    """That comes after the ranks have agreed, in the round itself, on whether to go on."""

    class Asks:
        def on_round_logged(self, federation: Federation, metrics: dict[str, float]) -> None:
            if federation.round == federation.rounds:
                federation.request_stop()

    with pytest.raises(SystemExit) as left:
        scaffold(tmp_path / "run", "--finetune-epochs", "1", callbacks=[Asks()])
    assert left.value.code == EXIT_PREEMPTED
    assert not (tmp_path / "run/personal.csv").exists()


def test_fine_tuning_that_diverges_is_an_error_or_skipped(tmp_path: Path) -> None:
    """Of client 4 alone, in the samples that it has now."""
    run = trained(algorithms.fedavg())
    run.clients.dataset.x[run.clients.partition[4]] = torch.nan
    with pytest.raises(
        DivergenceError,
        match=r"fine-tuning of clients? 4 .*\(learning rate 0.05\).*--finetune-lr; the rounds",
    ):
        scored(run, tmp_path / "personal.csv")
    run.on_divergence = "skip-client"
    metrics = scored(run, tmp_path / "personal.csv")
    with (tmp_path / "personal.csv").open() as file:
        column = [float(row["accuracy_1"]) for row in csv.DictReader(file)]
    others = [value for value in column if value == value]
    assert len(others) == 5
    assert metrics["personal/accuracy_1"] == pytest.approx(sum(others) / 5)
