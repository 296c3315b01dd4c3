"""How the processes of a run end: by a signal that asks for it, and never one without the others."""

import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import torch

from fl_lightning.distributed.launcher_env import is_first_rank

EXIT_PREEMPTED = 75
"""Exit code of a run that a signal ended after a checkpoint: sysexits' EX_TEMPFAIL, "try again later"."""

EXIT_INTERRUPTED = 130
"""Exit code of a run that Ctrl-C ended: what shells say of SIGINT."""

GRACE_S = 5.0
"""Seconds after Ctrl-C in which a rank may end by itself."""

SIGNALS = signal.SIGTERM, signal.SIGUSR1
"""What schedulers send before they kill: SLURM's preemption and `--signal`, `kill`, torchrun to its workers."""

POLL_S = 2.0
"""Seconds after which a rank notices that the process that launched it is gone."""


@contextmanager
def stop_on_signals(request_stop: Callable[[], None]) -> Iterator[list[str]]:
    """Let signals ask for a stop instead of ending the process; gives the names of those that came."""
    received: list[str] = []

    def heed(number: int, _: object) -> None:
        received.append(signal.Signals(number).name)
        request_stop()

    if (
        threading.current_thread() is not threading.main_thread()
    ):  # where Python does not let signals be handled
        yield received
        return
    before = {number: signal.signal(number, heed) for number in SIGNALS}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def exit_on_ctrl_c(told: Callable[[], str]) -> Iterator[None]:
    """Let Ctrl-C, which reaches every rank, end the run with a sentence of the first rank and exit code 130.

    Python makes an exception of it, which may get lost where it comes (in a destructor), or wait
        (for other ranks): so
    the process ends some seconds later in any case, and at once if Ctrl-C comes again after that
    exception.
    """
    if (
        threading.current_thread() is not threading.main_thread()
    ):  # where Python does not let signals be handled
        yield
        return

    def say() -> None:
        if is_first_rank():
            print(told(), flush=True)

    def end() -> None:
        say()
        os._exit(_exit_code(EXIT_INTERRUPTED))

    def interrupt(*_: object) -> NoReturn:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        with _ending_some_seconds_after_ctrl_c(end):
            yield
    except KeyboardInterrupt:
        say()
        leave(EXIT_INTERRUPTED)
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _ending_some_seconds_after_ctrl_c(end: Callable[[], None]) -> Iterator[None]:
    """Call `end` when Ctrl-C has come and nothing followed from it: Python's handlers wait for what is not Python."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    over = threading.Event()

    def listen() -> None:
        while number := os.read(read, 1):  # of each signal that has a handler, as soon as it comes
            if number[0] == signal.SIGINT:
                if not over.wait(GRACE_S):
                    end()
                return

    listener = threading.Thread(target=listen, daemon=True, name="ctrl-c")
    listener.start()
    before = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    _listening.add(write)
    try:
        yield
    finally:
        _listening.discard(write)
        signal.set_wakeup_fd(before)
        over.set()
        os.write(
            write, bytes([signal.SIGINT])
        )  # not by closing it: a forked process may hold it open too
        listener.join()
        os.close(write)
        os.close(read)


_listening: set[int] = set()


def _hear_nothing() -> None:
    """In a process that is forked off, whose signals are not this one's."""
    if _listening:
        signal.set_wakeup_fd(-1)


os.register_at_fork(after_in_child=_hear_nothing)


@contextmanager
def exit_without_nccl_teardown() -> Iterator[None]:
    """Let a rank that fails end at once, also on GPUs.

    There Lightning has NCCL take leave of the other ranks when Python exits; they wait for this one
    elsewhere, and do not notice that it has failed as long as its process lives.
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
    """Let this rank end when the process that launched it is gone, which may be unable to say so.

    A rank that Lightning launched from the first rank ends at once: without the first rank nothing
        can be added up. A
    worker of torchrun, which `fabric run` is, asks for a stop as SIGTERM does. Others have somebody
    who watches over them: torchrun ends its workers when one fails, within 30 seconds, Lightning's
    first rank within 5.
    """
    under_torchrun, launched = "TORCHELASTIC_RUN_ID" in os.environ, launched_by_first_rank()
    if not under_torchrun and not launched:
        yield
        return
    over, launcher = threading.Event(), os.getppid()

    def watch() -> None:
        while not over.wait(POLL_S):
            if os.getppid() != launcher:
                if launched:
                    os._exit(1)
                os.kill(os.getpid(), signal.SIGTERM)
                return

    watcher = threading.Thread(target=watch, daemon=True, name="launcher-watch")
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()  # a thread that is about to end when Python does takes the process down with SIGABRT


def launched_by_first_rank() -> bool:
    """Whether Lightning started this process from that of the first rank, as `python recipe.py --devices 2` does."""
    # LOCAL_RANK is Lightning's and torchrun's; SLURM and MPI have names of their own
    return int(os.environ.get("LOCAL_RANK", "0")) > 0 and "TORCHELASTIC_RUN_ID" not in os.environ


def leave(code: int) -> NoReturn:
    """End this rank with an exit code, if it is this rank's to tell."""
    raise SystemExit(_exit_code(code)) from None


def _exit_code(code: int) -> int:
    """Lightning's first rank kills itself when it sees a rank that it launched end with anything but 0."""
    return 0 if launched_by_first_rank() else code
