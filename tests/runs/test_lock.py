"""One folder, one run at a time."""

from pathlib import Path
from typing import TextIO

import pytest
import runs

from fl_lightning.runs import lock as run_lock
from fl_lightning.runs.lock import RunLock


def argv(folder: Path, *more: str) -> list[str]:
    return ["--run-dir", str(folder), "--accelerator", "cpu", "--rounds", "1", *more]


def refused(folder: Path, capsys: pytest.CaptureFixture[str], *more: str) -> str:
    with pytest.raises(SystemExit) as stop:
        runs.experiment(*argv(folder, *more)).run()
    assert stop.value.code == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    return said


@pytest.mark.parametrize("role", ["take", "share"])
def test_a_second_run_in_the_same_folder_is_refused(
    role: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whether the first rank of the other run is alive or another one that outlives it."""
    folder = tmp_path / "run"
    runs.experiment(*argv(folder)).run()
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    lock = RunLock(folder)
    getattr(lock, role)()
    for resume in ([], ["--resume"]):
        assert "a run is at work in" in refused(folder, capsys, *resume)
    lock.release()
    after = {
        path: path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path != lock.path
    }
    assert after == {path: content for path, content in before.items() if path != lock.path}
    runs.experiment(*argv(folder, "--resume", "--rounds", "2")).run()


def test_two_runs_that_begin_at_once_in_a_new_folder_are_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lock = RunLock(tmp_path / "new")
    lock.take()
    assert "a run is at work in" in refused(tmp_path / "new", capsys)
    assert lock.path.exists()
    lock.release()
    runs.experiment(*argv(tmp_path / "new")).run()


def taken(folder: Path) -> bool:
    """Whether a stranger finds the lock taken."""
    stranger = RunLock(folder)
    try:
        stranger.take()
    except ValueError:
        return True
    stranger.release()
    return False


def test_the_ranks_of_one_run_share_the_lock(tmp_path: Path) -> None:
    first, second = RunLock(tmp_path), RunLock(tmp_path)
    first.take()
    second.share()
    for holder in (first, second):
        assert taken(tmp_path)
        holder.release()
    assert not taken(tmp_path)


def test_a_lock_whose_file_is_removed_meanwhile_is_taken_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, lock = RunLock(tmp_path), RunLock(tmp_path), run_lock._lock
    first.take()

    def late(file: TextIO, kind: int) -> None:
        first.remove()
        lock(file, kind)

    monkeypatch.setattr(run_lock, "_lock", late)
    second.take()
    assert taken(tmp_path)
    second.release()


def test_a_mistake_leaves_no_lock_behind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "rounds is a whole number" in refused(tmp_path / "bad", capsys, "--rounds", "0")
    assert not (tmp_path / "bad").exists()
