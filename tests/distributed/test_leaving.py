"""A process that ends waits for nobody: not for ranks that wait elsewhere, nor for what it has forked off."""

import os
import signal
import subprocess
import sys

import pytest

from fl_lightning.distributed.signals import exit_without_nccl_teardown

FAILS = """
import atexit, time, torch
from fl_lightning.distributed.signals import exit_without_nccl_teardown

torch.distributed.is_initialized, torch.distributed.get_backend = lambda: True, lambda: {backend!r}
atexit.register(time.sleep, {seconds})  # as Lightning does, which waits for the others
with exit_without_nccl_teardown():
    {failure}
"""


@pytest.mark.parametrize(
    ("failure", "code", "said"),
    [
        ("raise SystemExit(2)", 2, ""),
        ("raise ValueError('ours')", 1, "ValueError: ours"),
        ("pass", 0, ""),
    ],
)
def test_a_rank_that_fails_does_not_wait_for_the_others_to_take_leave(
    failure: str, code: int, said: str
) -> None:
    seconds = 0 if failure == "pass" else 600
    program = FAILS.format(backend="nccl", seconds=seconds, failure=failure)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == code
    assert said in done.stderr


def test_elsewhere_what_fails_is_raised_on(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="ours"), exit_without_nccl_teardown():
        raise ValueError("ours")


FORKS = """
import os, time
from fl_lightning.distributed.signals import exit_on_ctrl_c

with exit_on_ctrl_c(lambda: "interrupted"):
    if not os.fork():
        time.sleep({seconds})
        os._exit(0)
print("over")
"""


def test_a_process_that_was_forked_off_keeps_no_run_from_ending() -> None:
    """As a worker of a DataLoader does that lives on, and holds what was open when it began."""
    command = [sys.executable, "-c", FORKS.format(seconds=600)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as run:
        try:
            assert run.wait(60) == 0
        finally:
            os.killpg(run.pid, signal.SIGKILL)


@pytest.mark.parametrize(
    ("failure", "code", "said"), [("raise SystemExit", 0, ""), ("raise SystemExit('no')", 1, "no")]
)
def test_python_s_ways_to_exit_keep_their_meaning(failure: str, code: int, said: str) -> None:
    program = FAILS.format(backend="nccl", seconds=600, failure=failure)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr.strip()) == (code, said)
