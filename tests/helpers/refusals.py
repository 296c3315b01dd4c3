"""Runs in this process that end early, and their error messages."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jobs
import pytest
from jobs import digits

from fl_lightning import Federation, models
from fl_lightning.cli.error_messages import exit_with_message
from fl_lightning.experiment import Experiment


def experiment(
    folder: Path, *argv: str, data: Any = digits, model: Any = models.mlp, **options: Any
) -> Experiment:
    """One round of FedAvg on the digits, unless `options` or `argv` say otherwise."""
    small: dict[str, Any] = {"clients": 6, "participation": 0.5, "rounds": 1, "batch_size": 64}
    argv = ("--run-dir", str(folder), "--accelerator", "cpu", *argv)
    return Experiment([data], [model], argv=argv, **{**small, **options})


def scaffold(folder: Path, *argv: str, callbacks: Sequence[Any] = ()) -> None:
    """Run `jobs.experiment` in a folder."""
    run = jobs.experiment("--run-dir", str(folder), "--accelerator", "cpu", *argv)
    run.callbacks = callbacks
    run.run()


class Stops:
    """Ctrl-C in the middle of a round."""

    def __init__(self, round: int):
        self.round = round

    def on_round_end(self, federation: Federation, metrics: dict[str, float]) -> None:
        if federation.round == self.round:
            raise KeyboardInterrupt


def sentence(
    capsys: pytest.CaptureFixture[str], run: Callable[..., Any], *args: Any, **kwargs: Any
) -> str:
    """The one-line error message of `run(...)`, with which a program ends with exit code 2."""
    with pytest.raises(SystemExit) as stop, exit_with_message():
        run(*args, **kwargs)
    assert stop.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert said.count("\n") == 1
    return said


def refused(capsys: pytest.CaptureFixture[str], folder: Path, *argv: str, **choices: Any) -> str:
    """The error message of an experiment that ends before its first round and leaves nothing."""
    said = sentence(capsys, lambda: experiment(folder, *argv, **choices).run())
    assert not folder.exists()
    return said
