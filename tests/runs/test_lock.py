"""One folder, one run at a time."""

from contextlib import suppress

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


def test_the_ranks_of_one_run_share_the_lock(tmp_path):
    def taken() -> bool:
        with suppress(ValueError), take_lock(tmp_path):
            return False
        return True

    for holder in take_lock(tmp_path), share_lock(tmp_path):
        assert taken()
        holder.close()
    assert not taken()
