"""Ranks of other machines, whose processes cannot be seen, are heard in the file that all share, if they share it."""

import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from threading import Thread

import pytest
import torch
from lightning.fabric import Fabric

from fl_lightning.distributed import heartbeat as whereabouts
from fl_lightning.distributed.heartbeat import BEAT, PROCESS, Heartbeat, meet

LISTENER = """
import sys, time
from pathlib import Path
from fl_lightning.distributed import heartbeat as whereabouts

whereabouts._machine, whereabouts.GLANCE, whereabouts.SILENCE = lambda: 1, 0.05, 1.0
rank = whereabouts.Heartbeat(Path(sys.argv[1]), 2, 0, 1)
with rank.watching(lambda: "round 3 of 7"):
    time.sleep(float(sys.argv[2]))
"""


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Heartbeat:
    """Rank 1, on another machine, which trains client 7 and beats for the first time."""
    monkeypatch.setattr(whereabouts, "_machine", lambda: 2)
    rank = Heartbeat(tmp_path / ".ranks", 2, 1, 1)
    rank.note([7])
    return rank


def listen(folder: Path, seconds: float) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", LISTENER, str(folder / ".ranks"), str(seconds)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_a_rank_of_another_machine_that_falls_silent_ends_this_one(
    elsewhere: Heartbeat, tmp_path: Path
) -> None:
    elsewhere._put(BEAT, 1)
    heard = listen(tmp_path, 30)
    assert heard.returncode == 2
    assert "error: round 3 of 7: another rank ended: rank 1, training client 7" in heard.stderr


def test_one_that_beats_does_not(elsewhere: Heartbeat, tmp_path: Path) -> None:
    def beat() -> None:
        for number in range(1, 1000):
            elsewhere._put(BEAT, number)
            time.sleep(0.02)

    Thread(target=beat, daemon=True).start()
    assert listen(tmp_path, 2.5).returncode == 0


@pytest.mark.parametrize("beats", [0, 5])
def test_nor_one_whose_rounds_have_not_begun_or_are_over(
    elsewhere: Heartbeat, tmp_path: Path, beats: int
) -> None:
    elsewhere._put(PROCESS, 0 if beats else 4321, beats)
    assert listen(tmp_path, 2.5).returncode == 0


def test_a_rank_that_has_failed_counts_as_ended_though_its_process_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(whereabouts, "_machine", lambda: 1)
    rank = Heartbeat(tmp_path / ".ranks", 2, 1, 1)
    with pytest.raises(OSError, match="full"), rank.watching(lambda: "round 3 of 7"):
        raise OSError("full")
    heard = listen(tmp_path, 30)
    assert heard.returncode == 2
    assert "another rank ended: rank 1" in heard.stderr


def told(fabric: Fabric, folder: Path, sharing: bool) -> list[str]:
    """What each of the ranks is told that meet, each in the folder of its number."""
    before, said = torch.get_rng_state(), "all are there"
    try:
        meet(fabric, folder / str(fabric.global_rank) / ".ranks", 1, sharing)
    except (OSError, ValueError) as error:
        said = str(error)
    assert torch.get_rng_state().equal(before)
    return [fabric.broadcast(said, src=rank) for rank in range(fabric.world_size)]


def told_on_two_ranks(folder: Path, sharing: bool = True) -> list[str]:
    fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp_fork")
    return fabric.launch(partial(told, folder=folder, sharing=sharing))


def test_ranks_of_one_folder_meet_and_those_of_two_are_all_refused(tmp_path: Path) -> None:
    """Lines of an earlier run, which did share its folder, do not make up for it."""
    (tmp_path / "0").mkdir()
    (tmp_path / "1").symlink_to(tmp_path / "0")
    assert told_on_two_ranks(tmp_path) == ["all are there"] * 2
    (tmp_path / "1").unlink()
    (tmp_path / "1").mkdir()
    (tmp_path / "1/.ranks").write_bytes((tmp_path / "0/.ranks").read_bytes())
    for rank, said in enumerate(told_on_two_ranks(tmp_path)):
        assert said == (
            f"rank 0 does not see what rank 1 wrote in {tmp_path / str(rank)}: give all machines one folder that they "
            "share"
        )
    assert told_on_two_ranks(tmp_path, sharing=False) == ["all are there"] * 2


def test_a_rank_that_cannot_write_says_so_and_none_waits_for_it(tmp_path: Path) -> None:
    (tmp_path / "1").write_text("a file, where the folder should be")
    first, second = told_on_two_ranks(tmp_path)
    assert first.startswith("rank 0 does not see what rank 1 wrote")
    assert "File exists" in second
