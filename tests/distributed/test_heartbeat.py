"""A rank that ends early ends the others of its machine; machines need one shared folder."""

import os
import time
from functools import partial
from pathlib import Path

import jobs
import pytest
import torch
from lightning.fabric import Fabric

from fl_lightning.distributed import heartbeat
from fl_lightning.distributed.heartbeat import DONE, FAILED, MACHINE, PROCESS, Heartbeat, rendezvous


def ended() -> int:
    """The id of a process that has ended."""
    process = jobs.FORK.Process(target=int)
    process.start()
    process.join()
    return process.pid


def watch(path: Path, seconds: float) -> None:
    heartbeat.POLL_S = 0.02
    with Heartbeat(path, 2, 0, 2).watching(lambda: "round 3 of 7"):
        time.sleep(seconds)


def watched(folder: Path, seconds: float) -> tuple[int | None, str]:
    """Exit code and output of rank 0 that watches rank 1."""
    process = jobs.start(folder / "rank 0", {}, watch, folder / ".ranks", seconds)
    return jobs.end([process])[0], jobs.said(folder / "rank 0")


@pytest.mark.parametrize("process", [ended, lambda: FAILED], ids=["killed", "failed but alive"])
def test_a_rank_that_ends_early_ends_the_others_and_its_clients_are_named(process, tmp_path):
    other = Heartbeat(tmp_path / ".ranks", 2, 1, 2)
    other.set_clients([7, 4])
    other._write(PROCESS, process())
    code, said = watched(tmp_path, 60)
    assert code == 2
    assert "error: round 3 of 7: another rank ended: rank 1, training clients 7, 4" in said


@pytest.mark.parametrize("case", ["alive", "done", "on another machine"])
def test_other_ranks_end_nobody(case, tmp_path):
    other = Heartbeat(tmp_path / ".ranks", 2, 1, 2)
    other._write(PROCESS, {"alive": os.getpid(), "done": DONE}.get(case, ended()))
    if case == "on another machine":
        other._write(MACHINE, 1)
    assert watched(tmp_path, 0.3) == (0, "")


def test_a_rank_whose_rounds_raise_counts_as_failed(tmp_path):
    rank = Heartbeat(tmp_path / ".ranks", 2, 1, 1)
    with pytest.raises(OSError, match="full"), rank.watching(lambda: "round 3 of 7"):
        raise OSError("full")
    assert rank._line(1)[PROCESS] == FAILED


def met(fabric: Fabric, folder: Path, sharing: bool) -> list[str]:
    """The outcome of each rank's rendezvous, in the folder of its number."""
    before, outcome = torch.get_rng_state(), "met"
    try:
        rendezvous(fabric, folder / str(fabric.global_rank) / ".ranks", 1, sharing)
    except (OSError, ValueError, SystemExit) as error:
        outcome = str(error)
    assert torch.get_rng_state().equal(before)
    return [fabric.broadcast(outcome, src=rank) for rank in range(fabric.world_size)]


def two_ranks_meet(folder: Path, sharing: bool = True) -> list[str]:
    fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp_fork")
    return fabric.launch(partial(met, folder=folder, sharing=sharing))


def test_ranks_without_a_shared_folder_are_refused(tmp_path):
    """Lines of an earlier run, which did share its folder, do not count."""
    (tmp_path / "0").mkdir()
    (tmp_path / "1").symlink_to(tmp_path / "0")
    assert two_ranks_meet(tmp_path) == ["met", "met"]
    (tmp_path / "1").unlink()
    (tmp_path / "1").mkdir()
    (tmp_path / "1/.ranks").write_bytes((tmp_path / "0/.ranks").read_bytes())
    for rank, said in enumerate(two_ranks_meet(tmp_path)):
        assert f"rank 0 does not see what rank 1 wrote in {tmp_path / str(rank)}: " in said
    assert two_ranks_meet(tmp_path, sharing=False) == ["met", "met"]


def test_no_rank_waits_for_one_that_cannot_write(tmp_path):
    (tmp_path / "1").write_text("a file, where the folder should be")
    first, second = two_ranks_meet(tmp_path)
    assert first == "2"
    assert "File exists" in second
