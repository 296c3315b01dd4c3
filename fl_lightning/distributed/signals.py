"""Signals and exits: SIGTERM stops after a checkpoint, Ctrl-C ends, a launcher's end ends ranks."""

import ctypes
import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, NoReturn

import torch
from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment

from fl_lightning.distributed.launch_options import is_first_rank
from fl_lightning.errors import UserError

if sys.platform == "win32":
    raise UserError("training needs Linux or macOS: on Windows, install and run it in WSL")

EXIT_PREEMPTED = 75
"""Exit code of a run that a signal ended after a checkpoint: EX_TEMPFAIL of sysexits.h."""

EXIT_INTERRUPTED = 130
"""Exit code of a run that Ctrl-C ended, as shells report SIGINT."""

STOP_SIGNALS = signal.SIGTERM, signal.SIGUSR1
"""Signals that schedulers send before they kill: SLURM's preemption, torchrun's SIGTERM."""

FIRST_RANK = "FL_LIGHTNING_FIRST_RANK"
"""Environment variable with the first rank's process id, for ranks that Lightning launches."""

_PR_SET_PDEATHSIG = 1  # of linux/prctl.h

_asked = list[Callable[[str], None]]()
"""What is done with a signal's name in each `stop_on_signals`."""


@contextmanager
def stop_on_signals(
    request_stop: Callable[[], None], numbers: Sequence[signal.Signals] = STOP_SIGNALS
) -> Iterator[list[str]]:
    """Let signals request a stop instead of ending the process; gives their names.

    In another thread this needs a `stop_on_signals` in the main thread at the same time.
    """
    received: list[str] = []

    def stop(name: str) -> None:
        received.append(name)
        request_stop()

    def handle(number: int, _: object) -> None:
        for each in _asked:
            each(signal.Signals(number).name)

    _asked.append(stop)
    try:
        with _handlers(dict.fromkeys(numbers, handle)):
            yield received
    finally:
        _asked.remove(stop)


@contextmanager
def exit_on_ctrl_c(message: Callable[[], str]) -> Iterator[None]:
    """Let Ctrl-C, which reaches every rank, end the run with one message and exit code 130."""
    try:
        yield
    except KeyboardInterrupt:
        if is_first_rank():
            print(message(), flush=True)
        leave(EXIT_INTERRUPTED)


def ctrl_c_kills() -> AbstractContextManager[None]:
    """Let Ctrl-C kill the process: Python's handlers do not run while C++ code waits for ranks."""
    return _handlers({signal.SIGINT: signal.SIG_DFL})


@contextmanager
def _handlers(handlers: dict[signal.Signals, Any]) -> Iterator[None]:
    """Install handlers; outside of the main thread, where Python does not allow it, do nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def exit_without_nccl_teardown() -> Iterator[None]:
    """Let a rank that fails on GPUs end immediately.

    Lightning destroys the NCCL process group when Python exits, which waits for the other ranks.
    They wait for this one elsewhere, and do not notice its failure while its process lives.
    """
    try:
        yield
    except BaseException as error:
        if not (torch.distributed.is_initialized() and torch.distributed.get_backend() == "nccl"):
            raise
        code: Any = error.code if isinstance(error, SystemExit) else 1
        if not isinstance(error, SystemExit):
            traceback.print_exc()
        elif isinstance(code, str):
            print(code, file=sys.stderr)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else code is not None)


@contextmanager
def exit_with_launcher() -> Iterator[None]:
    """Kill this rank when the first rank, or the agent of torchrun, that launched it ends (Linux).

    `fabric run` is torchrun. Other launchers watch their ranks.
    """
    first_rank, of_torchrun = os.environ.get(FIRST_RANK), TorchElasticEnvironment.detect()
    if not first_rank and not of_torchrun:
        yield
        return
    on_parent_death(signal.SIGKILL)
    # no signal comes for a launcher that ended before, while this rank imported
    if os.getppid() != int(first_rank) if first_rank else _agent_has_ended():
        print("error: the launcher of this rank has ended", file=sys.stderr)
        os._exit(2)
    try:
        yield
    finally:
        on_parent_death(0)  # the program may do more than this run


def _agent_has_ended() -> bool:
    """Whether nobody answers at the store that torchrun's first agent opens before its workers."""
    address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    try:
        socket.create_connection(address, timeout=30).close()
    except OSError:
        return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"  # else rank 0 opens it
    return False


def on_parent_death(number: int) -> None:
    """Let this process get a signal when its parent ends (Linux); 0 is none."""
    with suppress(AttributeError):  # not Linux
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)


def leave(code: int) -> NoReturn:
    """End this rank with an exit code, or with 0 if Lightning launched it.

    Another code of such a rank makes the first rank kill itself.
    """
    raise SystemExit(0 if FIRST_RANK in os.environ else code) from None
