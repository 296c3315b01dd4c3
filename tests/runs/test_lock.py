"""One folder, one run at a time."""

from pathlib import Path
from typing import TextIO

import pytest
from refusals import scaffold

from fl_lightning.runs import lock as run_lock
from fl_lightning.runs.lock import RunLock


def contents(folder: Path) -> dict[Path, bytes]:
    """All files but the lock's."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path: path.read_bytes() for path in files if path != RunLock(folder).path}


@pytest.mark.parametrize("role", ["take", "share"])
def test_a_second_run_in_the_same_folder_is_refused(role, tmp_path, sentence):
    """Whether the first rank of the other run is alive or another one that outlives it."""
    folder = tmp_path / "run"
    scaffold(folder, "--rounds", "1")
    before = contents(folder)
    lock = RunLock(folder)
    getattr(lock, role)()
    for resume in ([], ["--resume"]):
        assert "a run is at work in" in sentence(scaffold, folder, *resume)
    lock.release()
    assert contents(folder) == before
    scaffold(folder, "--resume", "--rounds", "1")


def test_of_two_runs_that_start_in_a_new_folder_one_is_refused(tmp_path, sentence):
    lock = RunLock(tmp_path / "new")
    lock.take()
    assert "a run is at work in" in sentence(scaffold, tmp_path / "new")
    assert lock.path.exists()
    lock.release()
    scaffold(tmp_path / "new", "--rounds", "1")


def taken(folder: Path) -> bool:
    """Whether another run finds the lock taken."""
    other = RunLock(folder)
    try:
        other.take()
    except ValueError:
        return True
    other.release()
    return False


def test_the_ranks_of_one_run_share_the_lock(tmp_path):
    first, second = RunLock(tmp_path), RunLock(tmp_path)
    first.take()
    second.share()
    for holder in (first, second):
        assert taken(tmp_path)
        holder.release()
    assert not taken(tmp_path)


def test_a_lock_whose_file_is_removed_meanwhile_is_taken_again(tmp_path, monkeypatch):
    first, second, lock = RunLock(tmp_path), RunLock(tmp_path), run_lock._lock
    first.take()

    def late(file: TextIO, kind: int) -> None:
        first.remove()
        lock(file, kind)

    monkeypatch.setattr(run_lock, "_lock", late)
    second.take()
    assert taken(tmp_path)
    second.release()
