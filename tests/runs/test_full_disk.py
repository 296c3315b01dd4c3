"""Disks that are full or read-only: the run says so, and loses nothing."""

import os
from errno import ENOSPC, EROFS
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import jobs
import pytest
import torch
from refusals import Stops, scaffold

from fl_lightning.federation.row_files import RowFiles


def fails(code: int) -> Mock:
    return Mock(side_effect=OSError(code, os.strerror(code)))


@pytest.mark.parametrize("resume", [(), ("--resume",)])
def test_a_read_only_disk_is_reported(resume, tmp_path, sentence, monkeypatch):
    monkeypatch.setattr(Path, "open", fails(EROFS))
    said = sentence(scaffold, tmp_path / "run", *resume)
    assert "Read-only file system" in said
    assert "another folder" in said


@pytest.mark.parametrize(
    ("owner", "name", "calls", "file"),
    [
        (RowFiles, "write", 9, "the run's folder"),
        (torch, "save", 5, ".ckpt"),
        (os, "fsync", 12, ""),
    ],
    ids=["a client's row", "a checkpoint", "to disk"],
)
def test_a_run_is_resumed_after_a_write_that_found_the_disk_full(
    owner, name, calls, file, tmp_path, uninterrupted, monkeypatch, sentence
):
    write, left = getattr(owner, name), iter(range(calls))

    def full_in_the_end(*args: Any) -> Any:
        if next(left, None) is None:
            raise OSError(ENOSPC, os.strerror(ENOSPC))
        return write(*args)

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, full_in_the_end)
        said = sentence(scaffold, tmp_path / "run")
    assert f"{file} cannot be written (No space left on device): free some space" in said
    assert "--resume continues a run" in said
    assert not list(tmp_path.rglob("*.part"))
    scaffold(tmp_path / "run", "--resume")
    assert jobs.results(tmp_path / "run") == uninterrupted


@pytest.mark.parametrize("below", ["file", "file/run"])
def test_a_run_folder_that_cannot_be_made_is_reported(below, tmp_path, sentence):
    (tmp_path / "file").write_text("a file")
    said = sentence(scaffold, tmp_path / below)
    assert str(tmp_path / below) in said
    assert "another folder" in said
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
