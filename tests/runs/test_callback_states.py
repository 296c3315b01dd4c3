"""What a callback keeps between rounds goes on with the run that is resumed."""

from pathlib import Path
from typing import Any

import pytest
import torch
from refusals import scaffold, sentence

from fl_lightning import Federation


class Average:
    """The mean of the global models so far, as those have it who average a server's models."""

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


class Stops:
    def __init__(self, at: int):
        self.at = at

    def on_round_end(self, federation: Federation, metrics: dict[str, float]) -> None:
        if federation.round == self.at:
            raise KeyboardInterrupt


def test_a_callback_goes_on_with_what_it_kept(tmp_path: Path) -> None:
    """Also after rounds that are run once more, since they came after the last checkpoint."""
    whole, before, after = Average(), Average(), Average()
    scaffold(tmp_path / "whole", callbacks=[whole])
    with pytest.raises(SystemExit):
        scaffold(tmp_path / "run", callbacks=[before, Stops(5)])
    scaffold(tmp_path / "run", "--resume", callbacks=[Stops(9), after])
    assert (before.rounds, after.rounds) == (4, 7)
    assert after.mean.equal(whole.mean)


def test_a_run_whose_callback_is_missing_is_not_resumed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scaffold(tmp_path, "--rounds", "2", callbacks=[Average()])
    assert "had a callback Average with a state" in sentence(capsys, scaffold, tmp_path, "--resume")


def test_what_cannot_be_loaded_is_not_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = sentence(capsys, scaffold, tmp_path, callbacks=[Odd()])
    assert "Odd.state_dict() holds tensors, numbers and text" in said
