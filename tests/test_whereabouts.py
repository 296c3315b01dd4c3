"""Ranks of other machines, whose processes cannot be seen, are heard in the file that all share."""

import subprocess
import sys
import time
from pathlib import Path
from threading import Thread

import pytest

from fl_lightning import whereabouts
from fl_lightning.whereabouts import Whereabouts

LISTENER = """
import sys, time
from pathlib import Path
from fl_lightning import whereabouts

whereabouts._machine, whereabouts.GLANCE, whereabouts.SILENCE = lambda: 1, 0.05, 1.0
rank = whereabouts.Whereabouts(Path(sys.argv[1]), 2, 0, 1)
with rank.watching(lambda: "round 3 of 7"):
    time.sleep(float(sys.argv[2]))
"""


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Whereabouts:
    """Rank 1, on another machine, which trains client 7 and beats for the first time."""
    monkeypatch.setattr(whereabouts, "_machine", lambda: 2)
    rank = Whereabouts(tmp_path / ".ranks", 2, 1, 1)
    rank.note([7])
    return rank


def listen(folder: Path, seconds: float) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", LISTENER, str(folder / ".ranks"), str(seconds)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_a_rank_of_another_machine_that_falls_silent_ends_this_one(elsewhere: Whereabouts, tmp_path: Path) -> None:
    elsewhere._put(2, 1)
    heard = listen(tmp_path, 30)
    assert heard.returncode == 2
    assert "error: round 3 of 7: another rank ended: rank 1, training client 7" in heard.stderr


def test_one_that_beats_does_not(elsewhere: Whereabouts, tmp_path: Path) -> None:
    def beat() -> None:
        for number in range(1, 1000):
            elsewhere._put(2, number)
            time.sleep(0.02)

    Thread(target=beat, daemon=True).start()
    assert listen(tmp_path, 2.5).returncode == 0


@pytest.mark.parametrize("beats", [0, 5])
def test_nor_one_whose_rounds_have_not_begun_or_are_over(elsewhere: Whereabouts, tmp_path: Path, beats: int) -> None:
    elsewhere._put(1, 0 if beats else 4321, beats)
    assert listen(tmp_path, 2.5).returncode == 0
