"""One folder, one run at a time."""

import shutil
from contextlib import suppress
from pathlib import Path

import pytest
from refusals import scaffold

from fl_lightning.runs.lock import LOCK, share_lock, take_lock


@pytest.mark.parametrize("lock", [take_lock, share_lock])
def test_a_second_run_in_the_same_folder_is_refused(lock, tmp_path, sentence):
    """Whether the first rank of the other run is alive or another one that outlives it."""
    folder = tmp_path / "run"
    scaffold(folder, "--rounds", "1")
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != LOCK]
    before = [path.read_bytes() for path in files]
    with lock(folder):
        for resume in ([], ["--resume"]):
            assert "a run is at work in" in sentence(scaffold, folder, *resume)
    assert [path.read_bytes() for path in files] == before
    scaffold(folder, "--resume", "--rounds", "1")


def test_of_two_runs_that_start_in_a_new_folder_one_is_refused(tmp_path, sentence):
    with take_lock(tmp_path / "new"):
        assert "a run is at work in" in sentence(scaffold, tmp_path / "new")
    scaffold(tmp_path / "new", "--rounds", "1")


class Begins:
    """Somebody who deletes the folder of a run in its second round, and begins another there."""

    def __init__(self, folder: Path):
        self.folder = folder

    def on_round_end(self, federation, metrics):
        if federation.round == 2:
            shutil.rmtree(self.folder)
            take_lock(self.folder).close()
            (self.folder / LOCK).write_text("1 on another machine")
            (self.folder / "metrics.csv").write_text("another run's")


def test_a_run_writes_no_round_into_the_folder_of_another_one(tmp_path, sentence):
    folder = tmp_path / "run"
    said = sentence(scaffold, folder, callbacks=[Begins(folder)])
    assert "another run has begun in it (1 on another machine)" in said
    assert (folder / "metrics.csv").read_text() == "another run's"
    assert not (folder / "checkpoints").exists()


def test_the_ranks_of_one_run_share_the_lock(tmp_path):
    def taken() -> bool:
        with suppress(ValueError), take_lock(tmp_path):
            return False
        return True

    for holder in take_lock(tmp_path), share_lock(tmp_path):
        assert taken()
        holder.close()
    assert not taken()
