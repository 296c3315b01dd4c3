"""Runs that end early: what they say."""

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import runs

from fl_lightning import DeviceDataset, models
from fl_lightning.data import sources
from fl_lightning.experiment import Experiment

original = cache(sources.digits)


def digits() -> tuple[DeviceDataset, DeviceDataset]:
    return original()


def experiment(folder: Path, *argv: str, data: Any = digits, model: Any = models.mlp) -> Experiment:
    """One round of FedAvg on the digits, unless `argv` says otherwise."""
    small: dict[str, Any] = {"clients": 6, "participation": 0.5, "rounds": 1, "batch_size": 64}
    return Experiment(
        [data], [model], argv=["--run-dir", str(folder), "--accelerator", "cpu", *argv], **small
    )


def scaffold(folder: Path, *argv: str, callbacks: Sequence[Any] = ()) -> None:
    """Run seven rounds of SCAFFOLD, with checkpoints after 0, 2, 4, 6 and 7."""
    run = runs.experiment("--run-dir", str(folder), "--accelerator", "cpu", *argv)
    run.callbacks = callbacks
    run.run()


def sentence(
    capsys: pytest.CaptureFixture[str], run: Callable[..., Any], *args: Any, **kwargs: Any
) -> str:
    """What `run(...)` says, which ends with one sentence and exit code 2."""
    with pytest.raises(SystemExit) as stop:
        run(*args, **kwargs)
    assert stop.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert said.count("\n") == 1
    return said


def refused(capsys: pytest.CaptureFixture[str], folder: Path, *argv: str, **choices: Any) -> str:
    """The sentence of an experiment that ends before its first round and leaves nothing behind."""
    said = sentence(capsys, lambda: experiment(folder, *argv, **choices).run())
    assert not folder.exists()
    return said
