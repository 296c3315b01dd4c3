"""Ranks that fail on GPUs, and ranks whose launcher is gone."""

import atexit
import os
import time
from collections.abc import Callable
from typing import Any

import jobs
import pytest
import torch

from fl_lightning.distributed import signals
from fl_lightning.distributed.signals import (
    FIRST_RANK,
    exit_with_launcher,
    exit_without_nccl_teardown,
    stop_on_signals,
)


def fail_with_nccl(error: BaseException) -> None:
    torch.distributed.is_initialized = lambda: True
    torch.distributed.get_backend = lambda: "nccl"
    atexit.register(time.sleep, 600)  # as Lightning does, which waits for the others
    with exit_without_nccl_teardown():
        raise error


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (SystemExit(), 0, ""),
        (SystemExit(2), 2, ""),
        (SystemExit("no"), 1, "no\n"),
        (ValueError("ours"), 1, "ValueError: ours\n"),
    ],
    ids=str,
)
def test_a_rank_that_fails_on_gpus_does_not_wait_for_the_others(error, code, said, tmp_path):
    process = jobs.start(tmp_path / "rank", {}, fail_with_nccl, error)
    assert jobs.end([process], 20) == [code]
    assert jobs.said(tmp_path / "rank").endswith(said)
    with pytest.raises(type(error)), exit_without_nccl_teardown():  # elsewhere it is raised
        raise error


def outlive(launcher_exits: Any, say: Callable[[str], None]) -> None:
    """A rank that handles signals and its launcher's end, and does nothing else."""
    if "GONE" in os.environ:
        signals.STARTED = os.getpid(), int(os.environ["GONE"])
    asked = list[bool]()
    with stop_on_signals(lambda: asked.append(True)), exit_with_launcher():
        say("watching")
        launcher_exits.set()
        for _ in range(1000):
            time.sleep(0.01)
            if asked:
                say("asked to stop")
                os._exit(0)
    say("outlived its launcher")


TORCHRUN = {"LOCAL_RANK": "0", "TORCHELASTIC_RUN_ID": "x"}


def launcher(variables: dict[str, str], say: Callable[[str], None]) -> None:
    os.environ |= variables
    ready = jobs.FORK.Event()
    jobs.FORK.Process(target=outlive, args=(ready, say)).start()
    if "1234567" not in variables.values():
        ready.wait(20)
    os._exit(0)


@pytest.mark.parametrize(
    ("variables", "last_words"),
    [
        ({"LOCAL_RANK": "1"}, ["watching"]),
        ({"LOCAL_RANK": "1", FIRST_RANK: "1234567"}, []),
        (TORCHRUN, ["watching", "asked to stop"]),
        ({**TORCHRUN, "GONE": "1234567"}, []),
    ],
    ids=["Lightning", "Lightning, gone before", "torchrun", "torchrun, gone before"],
)
def test_a_rank_ends_with_its_launcher(variables, last_words):
    read, write = os.pipe()

    def say(word: str) -> None:
        os.write(write, f"{word}\n".encode())

    process = jobs.FORK.Process(target=launcher, args=(variables, say))
    process.start()
    process.join()
    os.close(write)
    with os.fdopen(read) as words:  # ends when no process is left that could write
        assert words.read().splitlines() == last_words
