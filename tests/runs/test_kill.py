"""A run that is killed at any instant, or finds its disk full, is resumed as if it had not."""

import io
import os
from errno import ENOSPC, EROFS
from pathlib import Path
from typing import Any, BinaryIO
from unittest.mock import Mock

import jobs
import pytest
import torch
from refusals import Stops, scaffold
from torch.utils._pytree import tree_leaves

from fl_lightning import Federation
from fl_lightning.callbacks import Checkpoint
from fl_lightning.executors import SequentialExecutor
from fl_lightning.federation.client_store import ClientStore
from fl_lightning.federation.row_files import Row, RowFiles
from fl_lightning.runs.loggers import MetricsCSV

ROUNDS = tuple(range(1, 8))


def write_half(write: Any, files: RowFiles, slot: int, client: int, row: Row) -> None:
    """Die in the middle of a client's row."""
    half = tree_leaves(row)[0].clone()
    half[len(half) // 2 :] = 7  # in place of numbers that were never written
    write(files, slot, client, [{"half": half}])
    jobs.die()


def save_half(save: Any, state: Any, file: BinaryIO) -> None:
    """Die in the middle of a checkpoint's file."""
    whole = io.BytesIO()
    save(state, whole)
    file.write(whole.getvalue()[: whole.tell() // 2])
    os.fsync(file.fileno())
    jobs.die()


POINTS = {
    "before the first checkpoint": jobs.at_call(1, Checkpoint, "on_fit_start"),
    "in training": jobs.at_call(6, SequentialExecutor, "_visit"),
    "in the store's write": jobs.at_call(11, RowFiles, "write", write_half),
    "before the row of metrics that a checkpoint would follow": jobs.at_call(
        2, MetricsCSV, "log_metrics"
    ),
    "before the old checkpoint goes": jobs.at_call(1, Path, "unlink"),
    "after the old checkpoint went": jobs.at_call(1, ClientStore, "release"),
    "in the checkpoint's write": jobs.at_call(2, torch, "save", save_half),
}
"""Each process resumes the one before; one in the middle meets rows that a killed process wrote."""


def test_killed_at_every_stage_and_resumed_equals_never_killed(reference, tmp_path):
    folder = tmp_path / "run"
    for prepare in POINTS.values():
        jobs.run(folder, [-9], prepare=prepare)
        assert not (folder / "model.pt").exists()
    jobs.run(folder, [0])
    assert jobs.results(folder) == reference(1)
    assert jobs.steps_in_tensorboard(folder) == [ROUNDS]


@pytest.mark.parametrize(("victim", "codes"), [(0, [-9, 2]), (1, [2, -9])])
def test_a_rank_killed_in_the_sum_ends_the_other_and_both_resume(
    victim, codes, reference, tmp_path
):
    folder, sums = tmp_path / "run", 11  # two a round: of training, of evaluation
    killed = jobs.at_call(sums, Federation, "all_reduce_sum", rank=victim)
    said = jobs.run(folder, codes, prepare=killed)
    assert "error: round 6 of 7: another rank ended" in said
    jobs.run(folder, [0, 0])
    assert jobs.results(folder) == reference(2)
    assert jobs.steps_in_tensorboard(folder) == [ROUNDS]


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
