"""A resumed run: its options, and the states of its callbacks."""

import shutil
from typing import Any

import pytest
import torch
import yaml
from refusals import Stops, scaffold

from fl_lightning import Federation


class Average:
    """The mean of the global models so far."""

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
    odd = Average()
    odd.mean = odd
    said = sentence(scaffold, tmp_path, callbacks=[odd])
    assert "Average.state_dict() holds tensors, numbers and text" in said


def test_options_in_the_checkpoint_are_compared(tmp_path, sentence):
    scaffold(tmp_path, "--rounds", "1")
    state = torch.load(tmp_path / "checkpoints" / "round-1.ckpt", weights_only=True)
    assert state["options"]["lr"] == 0.1
    assert state["options"]["algorithm"]["name"] == "scaffold"
    assert state["best"]["accuracy"] > 0
    said = sentence(scaffold, tmp_path, "--resume", "--lr", "0.2")
    assert "lr was 0.1 and is now 0.2" in said
    config = yaml.safe_load((tmp_path / "config.yaml").read_text())
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({**config, "lr": 0.2}))
    assert sentence(scaffold, tmp_path, "--resume") == said


def test_harmless_options_may_change(tmp_path):
    scaffold(tmp_path, "--rounds", "1")
    more = "--keep-checkpoints", "1", "--on-divergence", "skip-client", "--checkpoint-every", "1"
    scaffold(tmp_path, "--rounds", "3", "--resume", *more)
    assert (tmp_path / "checkpoints/round-3.ckpt").exists()


def test_a_run_whose_checkpoints_are_gone_does_not_start_again(tmp_path, sentence):
    scaffold(tmp_path, "--rounds", "1")
    shutil.rmtree(tmp_path / "checkpoints")
    before = (tmp_path / "metrics.csv").read_text()
    assert "nothing to resume" in sentence(scaffold, tmp_path, "--resume")
    assert (tmp_path / "metrics.csv").read_text() == before
