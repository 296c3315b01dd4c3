"""Runs that end early: a normal end, with a model, scores and exit code 0."""

from contextlib import nullcontext
from math import inf, nan
from types import SimpleNamespace
from typing import Any

import jobs
import pytest
import torch
from lightning.fabric import Fabric
from problems import classification, federation
from refusals import Stops, experiment
from regressions import all_three, regression

from fl_lightning import Algorithm, Federation
from fl_lightning.callbacks import ClassAccuracy, EarlyStopping, Evaluation, GrowthStopping
from fl_lightning.errors import UserError


def last_round(callback: Any, tag: str, values: list[float | None]) -> int:
    """The last round where these are the values of a scalar; None in a round without one."""

    def record(federation: Federation, metrics: dict[str, Any]) -> None:
        value = values[federation.round - 1]
        metrics |= {"test/accuracy": 0.5} | ({} if value is None else {tag: value})

    records = SimpleNamespace(on_round_end=record, directions={"val/dose": True})
    fabric = Fabric(accelerator="cpu", devices=1, callbacks=[records, callback])
    run = federation(Algorithm(), fabric=fabric, rounds=len(values))
    run.fit()
    assert run.finished
    return run.round


@pytest.mark.parametrize(
    ("tag", "values", "options", "last"),
    [
        ("val/loss", [5, 4, 4, 4, 1], {}, 4),
        ("val/loss", [5, 4, 4, 3, 3, 3, 0], {}, 6),
        ("val/loss", [5, None, 5, None, 5, 0], {}, 5),
        ("val/loss", [5, nan, nan, 0], {}, 3),
        ("val/loss", [5, 4, 3, 2, 1], {"min_delta": 2}, 3),
        ("val/accuracy", [0.1, 0.2, 0.2, 0.1, 0.9], {}, 4),
        ("mine", [1, 2, 3, 4], {"mode": "max"}, 4),
        ("mine", [1, 2, 3, 4], {}, 3),
        ("val/dose", [1, 2, 3, 4], {}, 4),  # as its metric says
        ("test/clients_worst10", [1, 2, 3, 4], {}, 4),
        ("test/clients_std", [1, 2, 3, 4], {}, 3),
        ("val/accuracy", [0.5, 0.6, 0.7, 0.8], {"stopping_threshold": 0.7}, 3),
        ("val/loss", [3, 2, 1], {"stopping_threshold": 2, "min_delta": 1.5}, 2),
        ("val/loss", [4, 4, 4, 2], {"stopping_threshold": 2}, 3),
    ],
)
def test_a_run_ends_when_its_scalar_stops_improving(tag, values, options, last):
    assert last_round(EarlyStopping(2, tag, **options), tag, values) == last


def test_a_rule_that_has_ended_a_run_begins_anew_with_the_next():
    stop = EarlyStopping(2, "val/loss")
    ends = [last_round(stop, "val/loss", values) for values in ([5, 4, 4, 4, 1], [7, 6, 6, 6, 1])]
    assert ends == [4, 4]


@pytest.mark.parametrize(
    ("evaluated", "measured", "monitor", "end"),
    [(2, 1, "my/los", 4), (1, 5, "my/los", 5), (1, 5, "test/clients", 6)],
)
def test_a_scalar_that_no_round_records_is_refused(evaluated, measured, monitor, end):
    """After two evaluations, whatever their name, and when others have measured once."""
    data = classification().dataset
    given = ClassAccuracy(data, measured), Evaluation(data, evaluated, name="my")
    callbacks = [*given, EarlyStopping(2, monitor)]
    run = federation(
        Algorithm(), fabric=Fabric(accelerator="cpu", devices=1, callbacks=callbacks), rounds=6
    )
    refused = pytest.raises(UserError, match=r"'my/los': .* my/loss") if end < 6 else nullcontext()
    with refused:
        run.fit()
    assert run.round == end


@pytest.mark.parametrize(("tau", "ends"), [(0.05, True), (1e-9, False)])
def test_a_run_ends_when_the_model_stops_moving(tau, ends):
    stopping, grown = GrowthStopping(patience=3, tau=tau), list[float]()
    listens = SimpleNamespace(
        on_round_logged=lambda metrics: grown.append(metrics.get("server/growth", 1.0))
    )
    fabric = Fabric(accelerator="cpu", devices=1, callbacks=[stopping, listens])
    run = regression(Algorithm(), fabric=fabric, rounds=30, sampler=all_three)
    run.fit()
    assert (run.round < 30) == ends
    few = [growth < tau for growth in grown]
    assert [all(few[k - 2 : k + 1]) for k in range(2, len(few))].count(True) == ends
    moved = float((run.w.detach() - run.server.initial_w).norm())
    assert stopping.distance == pytest.approx(moved)


STOPPING = "early_stopping:monitor=train/loss,min_delta=9,patience"
ENDS = "--callback", f"{STOPPING}=2"
"""The first round is the best: a run ends after round 3."""

MEASURES = "--callback", "class_accuracy:every=2", "--callback", "local_models:every=2"
EVERY_2 = "--evaluate-every", "2", *MEASURES


@pytest.mark.parametrize("ranks", [1, 2])
def test_an_early_end_is_a_normal_one(ranks, tmp_path):
    """Its last round is measured although it is odd, and a resumed run ends again."""
    folder = tmp_path / "run"
    for _ in range(2):
        said = jobs.run(folder, [0] * ranks, *ENDS, *EVERY_2)
    assert said.count("ended early, after round 3 of 7") == 2
    assert said.count("test accuracy ") == 2
    assert (folder / "model.pt").exists()
    rows = jobs.results(folder)["metrics"]
    for tag in ("test/accuracy", "test/clients"):
        assert [bool(row[tag]) for row in rows] == [False, True, True]
    jobs.run(folder, [0] * ranks, "--callback", f"{STOPPING}=4")
    assert len(jobs.results(folder)["metrics"]) == 5


def test_a_run_that_reached_its_target_trains_on_to_a_further_one(tmp_path):
    def rounds(threshold: float, *options: str) -> int:
        stop = f"early_stopping:monitor=train/loss,min_delta=9,stopping_threshold={threshold}"
        experiment(tmp_path / "run", "--callback", stop, *options, rounds=7).run()
        return len(jobs.results(tmp_path / "run")["metrics"])

    assert [rounds(9), rounds(9, "--resume"), rounds(0, "--resume")] == [1, 1, 7]


def test_a_resumed_run_may_be_without_early_stopping(tmp_path):
    experiment(tmp_path / "run", *ENDS, rounds=7).run()
    experiment(tmp_path / "run", "--resume", "--callback", "none", rounds=7).run()
    assert len(jobs.results(tmp_path / "run")["metrics"]) == 7


def test_a_resumed_run_waits_as_long_as_one_that_was_not_stopped(tmp_path):
    """It was stopped after a round of waiting."""
    whole = experiment(tmp_path / "whole", *ENDS, rounds=7)
    whole.run()
    stopped = experiment(tmp_path / "run", *ENDS, "--checkpoint-every", "1", rounds=7)
    stopped.callbacks = [Stops(3)]
    with pytest.raises(SystemExit):
        stopped.run()
    experiment(tmp_path / "run", "--resume").run()
    assert jobs.results(tmp_path / "run") == jobs.results(tmp_path / "whole")


def test_a_run_stopped_in_its_last_round_is_scored_when_it_is_resumed(tmp_path):
    """SIGTERM and the early end fall together, in a round that is not evaluated."""

    class Preempts:
        def on_round_end(self, federation: Federation) -> None:
            if federation.round == 3:
                federation.request_stop(preempted=True)

    stopped = experiment(tmp_path / "run", *ENDS, "--evaluate-every", "5", rounds=7)
    stopped.callbacks = [Preempts()]
    with pytest.raises(SystemExit, match="75"):
        stopped.run()
    for _ in range(2):
        experiment(tmp_path / "run", "--resume").run()
        accuracies = [row["test/accuracy"] for row in jobs.results(tmp_path / "run")["metrics"]]
        assert [bool(accuracy) for accuracy in accuracies] == [False, False, True]


def test_another_scalar_to_monitor_begins_anew():
    of_accuracy, of_loss = (EarlyStopping(3, f"test/{name}") for name in ("accuracy", "loss"))
    of_accuracy.best, of_accuracy.waited = 0.9, 2
    of_accuracy.follows = "auto", "test/accuracy"
    resumed: Any = SimpleNamespace(
        round=3, should_stop=False, fabric=SimpleNamespace(_callbacks=[])
    )
    for stop, kept in ((of_accuracy, (0.9, 2)), (of_loss, (-inf, 0))):
        stop.load_state_dict(of_accuracy.state_dict())
        stop.on_fit_start(resumed)
        assert (stop.best, stop.waited) == kept


OWN = '''
import torch


class Ends:
    """Ends a run.

    Args:
        at: The round.
    """

    def __init__(self, test, partition, validation, folder, at: int = 2):
        self.test, self.at, self.file = test, at, folder / "seen.pt"
        assert len(partition) == 6 and validation is None

    def on_round_end(self, federation, metrics):
        index = torch.arange(len(self.test))
        right = federation.load_global()(self.test.inputs(index)).argmax(1) == self.test.y
        metrics["mine/accuracy"] = right.double().mean()
        assert federation.clients.partition.sizes.sum() == len(federation.clients.dataset)
        if federation.round == self.at:
            torch.save([sorted(states) for states in federation.server.states], self.file)
            federation.request_stop()


def two(at: int = 1):
    return [lambda: at, object()]
'''


def test_a_callback_of_a_file_gets_the_parts_of_the_run(tmp_path, sentence):
    own = tmp_path / "own.py"
    own.write_text(OWN)
    argv = "--callback", f"{own}:Ends:at=3", "--algorithm", "scaffold"
    experiment(tmp_path / "run", *argv, rounds=5).run()
    rows = jobs.results(tmp_path / "run")["metrics"]
    assert len(rows) == 3
    for row in rows:
        assert float(row["mine/accuracy"]) == pytest.approx(float(row["test/accuracy"]))
    assert torch.load(tmp_path / "run/seen.pt", weights_only=True) == [["c"]]
    assert "> is no callback" in sentence(
        experiment(tmp_path / "other", "--callback", f"{own}:two").run
    )
