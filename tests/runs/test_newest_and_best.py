"""Which checkpoint is the newest and which the best, also in a run that is resumed; and that they are on the disk."""

import os
from pathlib import Path

import pytest
import torch
from lightning.fabric import Fabric
from problems import Left, regression

from fl_lightning import Algorithm, Federation
from fl_lightning.callbacks import Checkpoint


class Scores:
    """The second round is the best."""

    def on_round_end(self, federation: Federation, metrics: dict[str, float]) -> None:
        metrics["test/accuracy"] = 0.9 if federation.round == 2 else 0.01 * federation.round


def begun(folder: Path, rounds: int) -> Federation:
    """Clients with states, before their first round or what remains of so many."""
    checkpoint = Checkpoint(folder, every=1, keep=2)
    fabric = Fabric(accelerator="cpu", devices=1, callbacks=[Scores(), checkpoint])
    federation = regression(
        Algorithm(Left()), fabric=fabric, rounds=rounds, state_dir=folder / "clients"
    )
    checkpoint.resume(federation)
    return federation


def run(folder: Path, rounds: int) -> Federation:
    """The same, after its rounds."""
    federation = begun(folder, rounds)
    federation.fit()
    return federation


def kept(folder: Path) -> set[str]:
    return {path.name for path in (folder / "checkpoints").iterdir()}


def of(*rounds: int) -> set[str]:
    return {f"round-{round}.ckpt" for round in rounds}


def test_round_10_is_newer_than_round_9(tmp_path: Path) -> None:
    run(tmp_path, 10)
    assert kept(tmp_path) == of(2, 9, 10)
    assert begun(tmp_path, 11).round == 10
    run(tmp_path, 11)
    assert kept(tmp_path) == of(2, 10, 11)


def test_a_resumed_run_knows_the_best_and_which_rows_are_kept(tmp_path: Path) -> None:
    assert run(tmp_path, 4).store.retained.keys() == kept(tmp_path) == of(2, 3, 4)
    best = (tmp_path / "best.pt").read_bytes()
    assert run(tmp_path, 7).store.retained.keys() == kept(tmp_path) == of(2, 6, 7)
    assert (tmp_path / "best.pt").read_bytes() == best
    state = torch.load(tmp_path / "checkpoints" / "round-7.ckpt", weights_only=True)
    assert state["best"] == {"name": "round-2.ckpt", "round": 2, "accuracy": 0.9}


def test_rows_of_a_checkpoint_that_is_gone_are_kept_no_longer(tmp_path: Path) -> None:
    run(tmp_path, 4)
    (tmp_path / "checkpoints" / "round-3.ckpt").unlink()
    assert run(tmp_path, 4).store.retained.keys() == of(2, 4)


def test_rows_are_on_the_disk_before_the_file_that_refers_to_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the names of both, so that neither is lost with the power."""
    fsync, synced = os.fsync, list[str]()

    def noted(file: int) -> None:
        synced.append(Path(os.readlink(f"/proc/self/fd/{file}")).name)
        fsync(file)

    monkeypatch.setattr(os, "fsync", noted)
    checkpoint = Checkpoint(tmp_path, every=1)
    fabric = Fabric(accelerator="cpu", devices=1, callbacks=[checkpoint])
    federation = regression(
        Algorithm(Left()), fabric=fabric, rounds=1, state_dir=tmp_path / "clients"
    )
    federation.train_round()
    checkpoint.on_round_logged(federation, {})
    assert synced == ["0.rows", "clients", ".part", "checkpoints"]
