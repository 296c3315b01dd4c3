"""What is left of a run that ends in fine-tuning after its last round, and resumes."""

import os
import signal
from functools import cache
from pathlib import Path
from typing import Any

import jobs
import pytest
from refusals import scaffold

from fl_lightning import Federation, SequentialExecutor
from fl_lightning.callbacks import PersonalModels
from fl_lightning.distributed.signals import EXIT_PREEMPTED

FINE_TUNE = "--rounds", "3", "--checkpoint-every", "100", "--finetune-epochs", "1"


def finish(folder: Path, ranks: int) -> tuple[dict[str, Any], str]:
    """Begin or resume a run; its results and the scores of its clients."""
    assert jobs.end(jobs.begin(folder, *FINE_TUNE, ranks=ranks)) == [0] * ranks, jobs.said(folder)
    return jobs.results(folder), (folder / "personal.csv").read_text()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Results by number of ranks, when nothing interrupts it."""
    return cache(lambda ranks: finish(tmp_path_factory.mktemp("whole") / "run", ranks))


def raises(*_):
    raise RuntimeError("bad luck")


def stops(score, *args):
    os.kill(os.getpid(), signal.SIGTERM)
    return score(*args)


SCORE, VISIT = (PersonalModels, "_accuracy"), (SequentialExecutor, "_visit")
SAVED, OTHER = "stopped by SIGTERM after round 3 of 3, which is saved: ", "stopped as another rank"
FAILURES = {
    "killed": (1, SCORE, jobs.die, [-9], "round 3/3"),
    "signal": (1, SCORE, stops, [EXIT_PREEMPTED], SAVED),
    "signal in the last round": (1, VISIT, stops, [EXIT_PREEMPTED], SAVED),
    "signal on one of two": (2, SCORE, stops, [EXIT_PREEMPTED, 0], OTHER),
    "raises on one of two": (2, SCORE, raises, [2, 1], "bad luck"),
}


@pytest.mark.parametrize(
    ("ranks", "where", "what", "codes", "said"), FAILURES.values(), ids=FAILURES
)
def test_a_failure_in_it_loses_no_round_and_a_resumed_run_repeats_it(
    ranks, where, what, codes, said, whole, tmp_path
):
    """It comes after the last checkpoint; the scores stand in the row of the last round."""
    folder = tmp_path / "run"
    prepare = jobs.at_call(12 // ranks, *where, what, rank=ranks - 1)
    ended = jobs.end(jobs.begin(folder, *FINE_TUNE, ranks=ranks, prepare=prepare))
    assert ended == codes, jobs.said(folder)
    assert said in jobs.said(folder)
    assert (folder / "checkpoints" / "round-3.ckpt").exists()
    assert (folder / "model.pt").exists()
    assert not (folder / "personal.csv").exists()
    resumed = finish(folder, ranks)
    assert resumed == whole(ranks)
    assert resumed[0]["metrics"][-1]["personal/accuracy_1"]
    assert jobs.steps_in_tensorboard(folder) == [(1, 2, 3), (3,)]


def test_a_preemption_while_the_last_round_is_logged_leaves_it_too(tmp_path):
    """That comes after the ranks have agreed, in the round itself, on whether to go on."""

    class Asks:
        def on_round_logged(self, federation: Federation) -> None:
            if federation.round == federation.rounds:
                federation.request_stop(preempted=True)

    argv = "--rounds", "1", "--finetune-epochs", "1"
    with pytest.raises(SystemExit) as left:
        scaffold(tmp_path / "run", *argv, callbacks=[Asks()])
    assert left.value.code == EXIT_PREEMPTED
    assert not (tmp_path / "run/personal.csv").exists()
