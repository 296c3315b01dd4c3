"""A resumed run: its options, and the states of its callbacks."""

import shutil
from dataclasses import replace
from typing import Any

import jobs
import pytest
import torch
from refusals import Stops, experiment, scaffold

from fl_lightning import DeviceDataset, Federation
from fl_lightning.callbacks import Checkpoint, Evaluation


class Average:
    def __init__(self) -> None:
        self.rounds, self.mean = 0, torch.zeros(())

    def on_round_end(self, federation: Federation, metrics: dict[str, float]) -> None:
        self.mean = self.mean + (federation.w.detach() - self.mean) / federation.round

    def on_round_logged(self, federation: Federation, metrics: dict[str, float]) -> None:
        self.rounds += 1

    def state_dict(self) -> dict[str, Any]:
        return {"rounds": self.rounds, "mean": self.mean}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rounds, self.mean = state["rounds"], state["mean"]


class Odd(Average):
    def state_dict(self) -> dict[str, Any]:
        return {"myself": self}


def test_a_callback_keeps_its_state(tmp_path):
    """Also after rounds that are repeated, since they came after the last checkpoint."""
    whole, before, after = Average(), Average(), Average()
    scaffold(tmp_path / "whole", callbacks=[whole])
    with pytest.raises(SystemExit):
        scaffold(tmp_path / "run", callbacks=[before, Stops(5)])
    scaffold(tmp_path / "run", "--resume", callbacks=[Stops(9), after])
    assert (before.rounds, after.rounds) == (4, 7)
    assert after.mean.equal(whole.mean)


def test_a_run_whose_callback_is_missing_is_not_resumed(tmp_path, sentence):
    scaffold(tmp_path, "--rounds", "2", callbacks=[Average()])
    assert "had a callback Average with a state" in sentence(scaffold, tmp_path, "--resume")


def test_a_state_that_cannot_be_loaded_is_refused(tmp_path, sentence):
    said = sentence(scaffold, tmp_path, callbacks=[Odd()])
    assert "Odd.state_dict() holds tensors, numbers and text" in said


@pytest.fixture
def short(tmp_path):
    folder = tmp_path / "run"
    argv = ["--run-dir", str(folder), "--accelerator", "cpu", "--rounds", "1"]
    jobs.experiment(*argv).run()
    return folder, argv


def test_options_that_were_edited_in_the_folder_are_not_those_of_the_rounds(short, sentence):
    folder, argv = short
    file = folder / "config.yaml"
    file.write_text(file.read_text().replace("\nlr: 0.1\n", "\nlr: 0.2\n"))
    assert "lr was 0.1 and is now 0.2" in sentence(jobs.experiment(*argv, "--resume").run)


def test_resuming_where_there_is_no_run_begins_one(short, tmp_path, capsys):
    """So the same command begins and continues a run; one without its options is refused."""
    folder, _ = short
    (tmp_path / "new").mkdir()
    argv = "--accelerator", "cpu", "--rounds", "1", "--resume"
    capsys.readouterr()
    jobs.experiment("--run-dir", str(tmp_path / "new"), *argv).run()
    assert "had not begun" in capsys.readouterr().out
    assert jobs.results(tmp_path / "new") == jobs.results(folder)
    jobs.experiment("--run-dir", str(tmp_path / "new"), *argv).run()
    assert "nothing is left to train after round 1: raise --rounds" in capsys.readouterr().out


def test_a_run_whose_checkpoints_are_gone_does_not_start_again(short, sentence):
    folder, argv = short
    shutil.rmtree(folder / "checkpoints")
    before = (folder / "metrics.csv").read_text()
    assert "nothing to resume" in sentence(jobs.experiment(*argv, "--resume").run)
    assert (folder / "metrics.csv").read_text() == before


@pytest.mark.parametrize(
    ("changed", "named"), [(0, "the checkpoint has data "), (1, "test set has changed")]
)
def test_a_run_is_not_resumed_with_other_data(changed, named, tmp_path, sentence):
    """Of one sample of the training (0) or the test set (1)."""
    more = [0, 0]

    def own() -> tuple[DeviceDataset, DeviceDataset]:
        train, test = (replace(data, x=data.x.clone()) for data in jobs.digits())
        for data, add in zip((train, test), more, strict=True):
            data.x[7] += add
        return train, test

    experiment(tmp_path, data=own).run()
    experiment(tmp_path, "--rounds", "2", "--resume", data=own).run()
    more[changed] = 1
    assert named in sentence(experiment(tmp_path, "--rounds", "3", "--resume", data=own).run)


def scores_of_rounds(scores: dict[int, float], monkeypatch: pytest.MonkeyPatch) -> None:
    class Scores(Evaluation):
        def measure(self, federation: Federation) -> dict[str, float]:
            self.scored = federation.round
            return {"test/accuracy": scores[self.scored], "test/loss": 1.0}

    monkeypatch.setattr("fl_lightning.training.task.Evaluation", Scores)


@pytest.mark.parametrize("accuracies", [(0.5, 0.9, 0.7), (0.9, 0.5, 0.7)])
def test_an_extended_run_has_the_scores_of_one_made_at_once(accuracies, tmp_path, monkeypatch):
    """What the end of the shorter run recorded alone is dropped: it would not have been due."""
    scores_of_rounds(dict(zip((4, 6, 8, 10), (*accuracies, 0.6), strict=True)), monkeypatch)
    monkeypatch.setattr("fl_lightning.training.session.results", lambda *_, **__: "")
    argv = "--evaluate-every", "4", "--finetune-epochs", "1"
    argv = *argv, "--callback", "early_stopping:monitor=test/accuracy"
    for folder, rounds in (("whole", [10]), ("extended", [6, 10])):
        for k in rounds:
            resume = ["--resume"] if (tmp_path / folder).exists() else []
            experiment(tmp_path / folder, *argv, "--rounds", str(k), *resume).run()
    whole, extended = (jobs.results(tmp_path / folder) for folder in ("whole", "extended"))
    assert [row["round"] for row in extended["metrics"] if row["test/accuracy"]] == ["4", "8", "10"]
    assert [row["round"] for row in extended["metrics"] if row["personal/accuracy_1"]] == ["10"]
    assert extended == whole
    best = [torch.load(tmp_path / f / "best.pt") for f in ("whole", "extended")]
    assert all(torch.equal(*pair) for pair in zip(*(b.values() for b in best), strict=True))


def test_a_last_round_that_is_killed_before_its_checkpoint_keeps_the_best_before(
    tmp_path, monkeypatch
):
    class Killed(BaseException):
        pass

    def killed(self, federation: Federation) -> None:
        if federation.round == 3:
            raise Killed
        save(self, federation)

    save = Checkpoint._save
    scores_of_rounds({2: 0.5, 3: 0.9, 4: 0.4}, monkeypatch)
    monkeypatch.setattr("fl_lightning.callbacks.checkpoint.SPACING", 0)
    argv = "--evaluate-every", "2", "--checkpoint-every", "1"
    with monkeypatch.context() as first:
        first.setattr(Checkpoint, "_save", killed)
        with pytest.raises(Killed):
            experiment(tmp_path, *argv, "--rounds", "3").run()
    kept = (tmp_path / "checkpoints/best.pt").read_bytes()
    experiment(tmp_path, "--resume").run()
    assert (tmp_path / "best.pt").read_bytes() != kept
    experiment(tmp_path, "--rounds", "4", "--resume").run()
    assert (tmp_path / "best.pt").read_bytes() == kept
