"""A process for each run of a table, or stack of runs, several at a time.

One process, the fork server, imports the package and forks the others (`forkserver`): no run waits
for imports, and none shares a state with another. A Mac's libraries, such as those that Fabric asks
for a GPU, may end a forked process: there each run imports the package itself (`spawn`).
"""

import fcntl
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import chain
from multiprocessing import forkserver, get_context, parent_process, resource_tracker
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TextIO

import torch

from fl_lightning.distributed.launch import available_cores
from fl_lightning.distributed.signals import (
    EXIT_PREEMPTED,
    STOP_SIGNALS,
    on_parent_death,
    stop_on_signals,
)
from fl_lightning.lab.sweep.plan import Job
from fl_lightning.lab.sweep.stacks import Stack, run_stack, unfinished

Environment = Mapping[str, str]

SIGNALS = signal.SIGINT, *STOP_SIGNALS
"""Signals that stop the runs."""

CONTEXT = get_context("spawn") if sys.platform == "darwin" else get_context("forkserver")
"""How `multiprocessing` starts the runs."""

SERVER_LOST = 255
"""Exit code that `multiprocessing` gives a process when the fork server has ended."""

SHOWN = 4
"""Running jobs that a line of progress names."""


def slots(jobs: int | None, per_gpu: int, on_cpu: bool) -> list[Environment]:
    """The environments of the runs that are made at a time: each has a GPU, or one thread.

    There are `jobs` of them; if that is None, `per_gpu` for each GPU, or one for each core.
    """
    cards = 0 if on_cpu else torch.cuda.device_count()
    if not cards:
        threads = os.environ.get("OMP_NUM_THREADS", "1")
        return [{"OMP_NUM_THREADS": threads}] * (jobs or available_cores())
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(cards)))).split(",")
    count = jobs or cards * per_gpu
    return [{"CUDA_VISIBLE_DEVICES": visible[k % cards]} for k in range(count)]


def start_server(slot: Environment) -> None:
    """Start the fork server, if there is one, with as many threads as a run."""
    if CONTEXT.get_start_method() == "forkserver":
        CONTEXT.set_forkserver_preload(["fl_lightning.experiment", __name__])
        with _inherited(slot):
            forkserver.ensure_running()


@contextmanager
def _inherited(slot: Environment) -> Iterator[None]:
    """Let a process that is started have these variables while it imports, and no signals.

    Terminals and schedulers send the signals that stop runs to all processes, but the fork server
    has to live on: it reports how the runs end.
    """
    before = os.environ.copy()
    resource_tracker.ensure_running()  # its start would unblock SIGINT and SIGTERM
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    os.environ.update(slot)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def run_all(
    stacks: Sequence[Stack], slots: Sequence[Environment]
) -> tuple[dict[Path, str], list[str]]:
    """Make the runs that are not finished, in order, as many stacks at a time as there are slots.

    The first signal, such as of Ctrl-C, lets each run save its round; the second ends it.

    Returns:
        The reasons of failures by the runs' folders, and the names of the signals.
    """
    total, free = sum(map(len, stacks)), [*slots]
    waiting = deque[Stack](left for stack in stacks if (left := unfinished(stack)))
    running, failures = dict[BaseProcess, tuple[Stack, Environment]](), dict[Path, str]()
    for job in chain.from_iterable(waiting):
        job.logs.mkdir(parents=True, exist_ok=True)
        job.log.touch()
    finished, line, sent = total - sum(map(len, waiting)), "", 0
    with stop_on_signals(lambda: None, SIGNALS) as signals:
        while running or (waiting and not signals):
            while waiting and free and not signals:
                stack, slot = waiting.popleft(), free.pop(0)
                args = stack, {**os.environ, **slot}, os.getcwd()
                process: BaseProcess = CONTEXT.Process(target=_run, args=args)
                with _inherited(slot):
                    process.start()
                running[process] = stack, slot
            now = [job for stack, _ in running.values() for job in stack]
            before, line = line, _progress(finished, total, now, len(failures))
            if line != before:
                print(line, file=sys.stderr, flush=True)  # the table alone goes to stdout
            wait([process.sentinel for process in running], timeout=0.2)
            for again in range(sent, len(signals)):
                for process in running:
                    process.kill() if again else process.terminate()
                if not again:
                    stopping = "each run saves its round; Ctrl-C again to end immediately"
                    print(f"stopping: {stopping}", file=sys.stderr)
            sent = len(signals)
            for process in [process for process in running if process.exitcode is not None]:
                stack, slot = running.pop(process)
                free.append(slot)
                code = process.exitcode or 0
                failed = unfinished(stack) if code else []
                finished += len(stack) - len(failed)
                if not signals:
                    failures |= {job.folder: _reason(code, job.log) for job in failed}
    return failures, signals


def _run(stack: Stack, environment: Environment, folder: str) -> None:
    """Make runs in a process of their own; the output of each is appended to a file."""
    os.setsid()  # Ctrl-C reaches the table alone, which lets runs save their round
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    on_parent_death(signal.SIGTERM)  # of the fork server
    threading.Thread(target=_end_with_table, daemon=True).start()
    os.chdir(folder)
    os.environ.update(environment)
    with ExitStack() as opened:
        logs = _logs(stack, opened)
        for descriptor in (1, 2):
            os.dup2(logs[0].fileno(), descriptor)
        raise SystemExit(run_stack(stack, logs))


def _logs(stack: Stack, opened: ExitStack) -> list[TextIO]:
    """The files of what the runs print, once no other table makes these runs.

    They are locked once each, and in one order by every table: else two could wait for each other.
    """
    logs = dict[Path, TextIO]()
    for path in sorted({job.log for job in stack}):
        logs[path] = opened.enter_context(path.open("a", buffering=1, encoding="utf-8"))
        with suppress(OSError):  # of file systems without locks
            fcntl.flock(logs[path], fcntl.LOCK_EX)
    return [logs[job.log] for job in stack]


def _end_with_table() -> None:
    """Save the run's round when the process that prints the table is killed."""
    table = parent_process()
    assert table
    table.join()
    os.kill(os.getpid(), signal.SIGTERM)


def _progress(finished: int, total: int, running: Sequence[Job], failed: int) -> str:
    names = [job.folder.name for job in running]
    shown = ", ".join([*names[:SHOWN], *["..."] * (len(names) > SHOWN)])
    ended = f"{finished} of {total} runs finished" + (f", {failed} failed" if failed else "")
    return f"{ended}, {len(names)} running" + (f": {shown}" if names else "")


def _reason(code: int, log: Path) -> str:
    if code < 0:
        return f"its process was ended by {signal.Signals(-code).name}"
    if code == SERVER_LOST:
        return "the fork server was killed; the run saves its round and ends"
    if code == EXIT_PREEMPTED:
        return "it was asked to stop"
    text = log.read_text(errors="replace").strip() if log.is_file() else ""
    return text.splitlines()[-1].removeprefix("error: ") if text else f"exit code {code}"
