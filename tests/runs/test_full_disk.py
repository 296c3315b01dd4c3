"""Disks that are full or read-only: the run says so, and loses nothing."""

import os
import shutil
import subprocess
from collections.abc import Callable
from errno import ENOSPC
from pathlib import Path
from typing import Any

import jobs
import pytest
import torch
from image_files import write_images
from refusals import Stops, scaffold

from fl_lightning import Federation
from fl_lightning.callbacks import Checkpoint
from fl_lightning.data import image_folder
from fl_lightning.federation.row_files import RowFiles


@pytest.fixture
def small_disk(tmp_path):
    """A disk of 12 MB, where this machine lets one be mounted."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = (
        shutil.which("mount")
        and not subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=12m", "none", str(disk)], capture_output=True
        ).returncode
    )
    if not mounted:
        pytest.skip("no disk can be mounted here")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


class Fills:
    """Fills a disk after a round, but for `left` bytes."""

    def __init__(self, disk: Path, round: int, left: int):
        self.file, self.round, self.left = disk / "filling", round, left

    def on_round_logged(self, federation: Federation, metrics: dict[str, float]) -> None:
        if federation.round == self.round:
            self.file.write_bytes(bytes(shutil.disk_usage(self.file.parent).free - self.left))


@pytest.mark.parametrize(
    ("algorithm", "left", "file"),
    [
        ("scaffold", 0, ".rows"),
        ("fedavg", 0, "run/.part"),
        ("fedavg", 300_000, "checkpoints/.part"),
    ],
    ids=["a client's row", "the best model", "a checkpoint"],
)
def test_a_disk_that_fills_up_keeps_the_checkpoints(
    algorithm, left, file, small_disk, tmp_path, sentence
):
    argv, folder = ("--algorithm", algorithm), small_disk / "run"
    filling = Fills(small_disk, 3, left)
    scaffold(tmp_path / "whole", *argv)
    said = sentence(scaffold, folder, *argv, callbacks=[filling])
    assert "the disk is full" in said
    assert "--resume" in said
    assert f"{file} could not be written" in said
    assert not list(folder.rglob("*.part"))
    filling.file.unlink()
    scaffold(folder, *argv, "--resume")
    assert jobs.results(folder) == jobs.results(tmp_path / "whole")


def test_a_disk_without_room_for_decoded_images_is_reported(small_disk, refused):
    """A write to a mapped file would end the process with SIGBUS."""
    write_images(small_disk, [f"{s}/{name}" for s in ("train", "test") for name in ("cat", "dog")])
    argv = "--data-dir", str(small_disk), "--data.size", "700"
    assert "the decoded images take 17.6 MB" in refused(*argv, data=image_folder)
    assert not list((small_disk / ".cache").iterdir())


def test_a_read_only_disk_is_reported(small_disk, sentence):
    scaffold(small_disk / "run", "--rounds", "2")
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    for argv in (["--run-dir", str(small_disk / "other")], ["--resume"]):
        said = sentence(scaffold, small_disk / "run", *argv)
        assert "Read-only file system" in said
        assert "--run-dir" in said


def full(*_: Any, **__: Any) -> Any:
    raise OSError(ENOSPC, os.strerror(ENOSPC))


def full_after(calls: int, function: Callable[..., Any]) -> Callable[..., Any]:
    left = iter(range(calls))
    return lambda *args, **kwargs: (
        function(*args, **kwargs) if next(left, None) is not None else full()
    )


@pytest.mark.parametrize(
    ("owner", "name", "calls"),
    [(RowFiles, "write", 14), (torch, "save", 3), (os, "fsync", 12), (Checkpoint, "_save", 2)],
    ids=["a client's row", "a checkpoint", "to disk", "anything"],
)
def test_a_run_is_resumed_after_a_write_that_found_the_disk_full(
    owner, name, calls, tmp_path, uninterrupted, monkeypatch, sentence
):
    """Where no disk can be mounted, too."""
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, full_after(calls, getattr(owner, name)))
        assert "the disk is full" in sentence(scaffold, tmp_path / "run")
    assert not list(tmp_path.rglob("*.part"))
    scaffold(tmp_path / "run", "--resume")
    assert jobs.results(tmp_path / "run") == uninterrupted


@pytest.mark.parametrize("below", ["file", "file/run"])
def test_a_run_folder_that_cannot_be_made_is_reported(below, tmp_path, sentence):
    (tmp_path / "file").write_text("a file")
    said = sentence(scaffold, tmp_path / below)
    assert str(tmp_path / below) in said
    assert "--run-dir" in said
    assert (tmp_path / "file").read_text() == "a file"


@pytest.mark.parametrize("cut", [1, 300])
def test_a_table_that_ends_in_the_middle_of_a_line_is_continued(cut, tmp_path, uninterrupted):
    """The line of a round after the checkpoint, as a full disk or a kill leaves it."""
    folder = tmp_path / "run"
    with pytest.raises(SystemExit, match="130"):
        scaffold(folder, callbacks=[Stops(4)])
    table = (folder / "metrics.csv").read_text()
    lines = table.splitlines(keepends=True)
    assert len(lines) == 4
    (folder / "metrics.csv").write_text("".join(lines[:-1]) + lines[-1][:-cut])
    scaffold(folder, "--resume")
    assert jobs.results(folder) == uninterrupted
