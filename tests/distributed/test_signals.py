"""Signals that stop a run, ranks that raise or fail, and launchers that end."""

import atexit
import os
import re
import runpy
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import jobs
import pytest
import torch
from lightning.fabric import Fabric
from lightning.fabric.plugins.environments.lightning import find_free_network_port
from problems import federation
from torch.distributed import TCPStore

from fl_lightning import Algorithm, TermError, UserError
from fl_lightning.distributed import signals
from fl_lightning.distributed.signals import (
    EXIT_INTERRUPTED,
    EXIT_PREEMPTED,
    FIRST_RANK,
    STOP_SIGNALS,
    exit_with_launcher,
    exit_without_nccl_teardown,
    stop_on_signals,
)
from fl_lightning.executors import SequentialExecutor, StackedExecutor
from fl_lightning.experiment import Experiment
from fl_lightning.training.session import Session

VISIT = SequentialExecutor, "_visit"
"""It is called once on two samples, then for each client."""


def before_call(number: signal.Signals) -> Callable[..., Any]:
    """Let a signal come in the middle of a client's training."""

    def visit(function, *args):
        os.kill(os.getpid(), number)
        return function(*args)

    return visit


@pytest.mark.parametrize(
    ("ranks", "hit", "number", "codes"),
    [(1, 0, signal.SIGTERM, [EXIT_PREEMPTED]), (2, 1, signal.SIGUSR1, [EXIT_PREEMPTED, 0])],
    ids=["one rank", "one of two ranks"],
)
def test_a_signal_ends_the_round_writes_a_checkpoint_and_stops_every_rank(
    ranks, hit, number, codes, reference, tmp_path
):
    folder = tmp_path / "run"
    visits = 12 // ranks  # the last but one of the third round, of four clients
    prepare = jobs.at_call(visits, *VISIT, before_call(number), rank=hit)
    said = jobs.run(folder, codes, prepare=prepare)
    why = f"by {number.name}" if hit == 0 else "as another rank asked"
    assert f"stopped {why} after round 3 of 7" in said
    assert f"--run-dir {folder} --resume\n" in said
    assert (folder / "checkpoints" / "round-3.ckpt").exists()
    assert not (folder / "model.pt").exists()
    jobs.run(folder, [0] * ranks)
    assert jobs.results(folder) == reference(ranks)
    assert jobs.steps_in_tensorboard(folder) == [tuple(range(1, 8))]


def test_one_rank_stops_after_a_signal_in_the_evaluation_too():
    class Asks:
        def on_round_end(self, federation: Any, metrics: dict[str, float]) -> None:
            os.kill(os.getpid(), signal.SIGTERM)

    run = federation(Algorithm(), fabric=Fabric(accelerator="cpu", devices=1, callbacks=[Asks()]))
    with stop_on_signals(run.request_stop) as received:
        run.fit()
    assert (run.round, run.should_stop, received) == (1, True, ["SIGTERM"])


def test_handlers_are_restored():
    before = [signal.getsignal(number) for number in STOP_SIGNALS]
    with stop_on_signals(lambda: None):
        assert not {signal.getsignal(number) for number in STOP_SIGNALS} & {*before}
    assert [signal.getsignal(number) for number in STOP_SIGNALS] == before


def interrupted(*_):
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(600)


SAVED = "interrupted: round 0 is saved"
BEFORE = "interrupted before anything was saved"


@pytest.mark.parametrize("codes", [[EXIT_INTERRUPTED], [EXIT_INTERRUPTED, 0]], ids=["1", "2"])
@pytest.mark.parametrize(
    ("owner", "name", "calls", "message"),
    [(*VISIT, 6, SAVED), (Session, "_simulation", 1, BEFORE)],
    ids=["in a round", "before the first round"],
)
def test_ctrl_c_ends_the_run_with_one_message(owner, name, calls, message, codes, tmp_path):
    folder = tmp_path / "my run"
    prepare = jobs.at_call(max(1, calls // len(codes)), owner, name, interrupted, rank=None)
    said = jobs.run(folder, codes, prepare=prepare)
    assert said.count(message) == 1
    assert "Traceback" not in said
    assert folder.exists() == (message == SAVED)
    assert (f"--run-dir '{folder}' --resume\n" in said) == (message == SAVED)


def waits_for_another_machine(*_):
    """In C++ code, which does not return to Python when a signal comes."""
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    TCPStore("127.0.0.1", find_free_network_port(), 2, is_master=True, timeout=timedelta(minutes=5))


def test_ctrl_c_ends_a_run_that_waits_for_other_ranks(tmp_path):
    prepare = jobs.at_call(1, Fabric, "launch", waits_for_another_machine)
    assert jobs.end(jobs.begin(tmp_path / "run", prepare=prepare), 20) == [-signal.SIGINT]


def raising(error: Exception) -> Callable[..., Any]:
    def instead(_, *args):
        raise error

    return instead


@pytest.mark.parametrize("rank", [None, 1], ids=["on both ranks", "on one rank"])
def test_data_that_cannot_be_loaded_is_one_sentence(rank, tmp_path):
    no_data = raising(UserError("no data in data/cifar10"))
    prepare = jobs.at_call(1, Experiment, "load", no_data, rank)
    said = jobs.run(tmp_path / "run", [2, 2], prepare=prepare)
    assert "error: no data in data/cifar10" in said
    assert ("(on rank 1)" in said) == bool(rank)
    assert "Traceback" not in said


BUG, WRONG = RuntimeError("a bug in a term"), TermError("this term is wrong")
STACKED = "--executor", "stacked", "--parallel-clients", "2"
STACKED_CALL = StackedExecutor, "__call__"


@pytest.mark.parametrize(
    ("options", "call", "error", "message"),
    [
        ((), (6, *VISIT), BUG, r"RuntimeError: a bug in a term\nin round 3 of 7, client \d\n"),
        (STACKED, (3, *STACKED_CALL), BUG, r"a bug in a term\nin round 3 of 7, clients \d, \d\n"),
        ((), (2, *VISIT), WRONG, r"error: this term is wrong \(in round 1 of 7, client \d\)"),
    ],
    ids=["a bug", "clients in parallel", "a wrong term"],
)
def test_a_rank_that_raises_names_clients_and_round_and_ends_the_others(
    options, call, error, message, tmp_path
):
    """The first rank can only say that another rank ended."""
    prepare = jobs.at_call(*call, raising(error), rank=1)
    codes = [2, 2 if error is WRONG else 1]
    said = jobs.run(tmp_path / "run", codes, *options, prepare=prepare)
    assert re.search(message, said)
    assert "another rank ended" in said


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
    """A rank that ends with its launcher, and does nothing else."""
    with exit_with_launcher():
        say("watching")
        launcher_exits.set()
        time.sleep(20)
    say("outlived its launcher")


def launcher(variables: dict[str, str], gone: bool, say: Callable[[str], None]) -> None:
    os.environ |= variables
    if FIRST_RANK in variables and not gone:
        os.environ[FIRST_RANK] = str(os.getpid())
    ready = jobs.FORK.Event()
    jobs.FORK.Process(target=outlive, args=(ready, say)).start()
    if not gone:
        ready.wait(20)
    os._exit(0)


TORCHRUN = {"TORCHELASTIC_RUN_ID": "x", "TORCHELASTIC_USE_AGENT_STORE": "True"}


def test_windows_is_refused_in_one_sentence(monkeypatch):
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(UserError, match="WSL"):
        runpy.run_path(signals.__file__)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with its parent")
@pytest.mark.parametrize("gone", [False, True], ids=["later", "before"])
@pytest.mark.parametrize("by_torchrun", [False, True], ids=["Lightning", "torchrun"])
def test_a_rank_ends_with_its_launcher(by_torchrun, gone):
    """Also if that has ended during the imports: its process id, or its store, is gone."""
    read, write = os.pipe()

    def say(word: str) -> None:
        os.write(write, f"{word}\n".encode())

    with socket.create_server(("127.0.0.1", 0)) as store:
        port = find_free_network_port() if gone else store.getsockname()[1]
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        variables = {**TORCHRUN, **address} if by_torchrun else {FIRST_RANK: "1234567"}
        process = jobs.FORK.Process(target=launcher, args=(variables, gone, say))
        process.start()
        process.join()
        os.close(write)
        with os.fdopen(read) as words:  # ends when no process is left that could write
            assert words.read().splitlines() == ([] if gone else ["watching"])
