"""Runs that can be killed: one forked process a rank, as a launcher would start them."""

import atexit
import csv
import logging
import os
import runpy
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning_utilities.core.rank_zero as utilities_rank_zero
import torch
from lightning.fabric.plugins.environments.lightning import find_free_network_port
from lightning.fabric.strategies.launchers import subprocess_script
from lightning.fabric.utilities.rank_zero import rank_zero_only
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.distributed.elastic.multiprocessing.subprocess_handler import subprocess_handler

from fl_lightning import DeviceDataset
from fl_lightning.cli import error_messages
from fl_lightning.data import sources
from fl_lightning.distributed import launch
from fl_lightning.distributed.signals import FIRST_RANK
from fl_lightning.experiment import Experiment
from fl_lightning.models import mlp

logging.getLogger("tensorboard").setLevel(logging.ERROR)  # it warns of every resumption

FORK = get_context("fork")

original = cache(sources.digits)


def digits() -> tuple[DeviceDataset, DeviceDataset]:
    return original()


Prepare = Callable[[int], None]
"""Called with the rank in each process before the run begins."""


def begin(
    folder: Path, *argv: str, ranks: int = 1, prepare: Prepare = lambda rank: None
) -> list[BaseProcess]:
    """Start the ranks of a run in `folder`, or resume it; their output goes to `<folder>.log`."""
    if (folder / "config.yaml").exists():
        argv = (*argv, "--resume")
    argv = ("--run-dir", str(folder), "--accelerator", "cpu", "--devices", str(ranks), *argv)
    argv = argv if ranks == 1 else (*argv, "--strategy", "ddp")
    digits()  # imported and read here, the forked processes have it already
    port = find_free_network_port()
    processes = []
    for rank in range(ranks):
        variables = of_lightning(rank, ranks, port) if ranks > 1 else {}
        processes.append(start(folder, variables, _run, argv, rank, prepare))
    return processes


def of_lightning(rank: int, ranks: int, port: int) -> dict[str, object]:
    """Environment variables that Lightning's launcher sets for a rank."""
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    launched = {FIRST_RANK: os.getpid()} if rank else {}
    return {**address, **launched, "NODE_RANK": 0, "WORLD_SIZE": ranks, "LOCAL_RANK": rank}


def start(
    folder: Path, variables: dict[str, object], run: Callable[..., Any], *args: Any
) -> BaseProcess:
    """Call `run(*args)` in a forked process with these environment variables; output to the log."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    process = FORK.Process(target=_in_process, args=(folder, variables, run, args))
    process.start()
    return process


class Fork:
    """In place of `subprocess.Popen`, for launchers: a process that has the package already.

    It runs a program from its top, as an interpreter would after seconds of imports.
    """

    def __init__(
        self, args: Sequence[str], env: Mapping[str, str], start_new_session: bool = False, **_: Any
    ) -> None:
        argv = [word for word in args[1:] if word != "-u"]
        self._process = FORK.Process(target=_launched, args=(argv, env, start_new_session))
        self._process.start()
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int | None:
        self._process.join(timeout)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.returncode is None and self.pid:
            os.kill(self.pid, number)


def _launched(argv: list[str], variables: Mapping[str, str], new_session: bool) -> None:
    atexit._clear()
    if new_session:
        os.setsid()
    os.environ.clear()
    _set(variables)
    program(*argv)


def program(*argv: str) -> None:
    """Run a program as `python` does, but for ranks that it launches, which are forks."""
    subprocess_script.subprocess = SimpleNamespace(Popen=Fork)
    subprocess_handler.Popen = Fork
    launch._asked.clear()  # of tests before
    sys.argv = [*argv]
    sys.path.insert(0, str(Path(argv[0]).parent))
    runpy.run_path(argv[0], run_name="__main__")


def _set(variables: Mapping[str, object]) -> None:
    """Set environment variables, and the rank that Lightning has read from them."""
    os.environ |= {name: str(value) for name, value in variables.items()}
    rank = int(variables.get("RANK", variables.get("SLURM_PROCID", variables.get("LOCAL_RANK", 0))))
    rank_zero_only.rank = utilities_rank_zero.rank_zero_only.rank = rank


def _in_process(
    folder: Path, variables: dict[str, object], run: Callable[..., Any], args: tuple[Any, ...]
) -> None:
    atexit._clear()
    log = os.open(f"{folder}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1), os.dup2(log, 2)
    sys.stdout, sys.stderr = (os.fdopen(n, "w", buffering=1, closefd=False) for n in (1, 2))
    for handler in logging.getLogger("lightning.fabric").handlers:
        if type(handler) is logging.StreamHandler:  # none of pytest's
            handler.setStream(sys.stderr)
    _set(variables)
    torch.set_num_threads(1)
    error_messages.LAUNCHER_S = 0  # nobody would name a rank
    run(*args)


def _run(argv: tuple[str, ...], rank: int, prepare: Prepare) -> None:
    prepare(rank)
    experiment(*argv).run()


def end(processes: list[BaseProcess], seconds: float = 60.0) -> list[int | None]:
    """Wait for all; their exit codes, None for one that hangs."""
    for process in processes:
        process.join(seconds)
    codes = [process.exitcode for process in processes]
    for process in processes:
        process.kill()
        process.join()
    return codes


def run(folder: Path, codes: list[int], *argv: str, **options: Any) -> str:
    """The output of a run with a rank for each of these exit codes."""
    processes = begin(folder, *argv, ranks=len(codes), **options)
    assert end(processes) == codes, said(folder)
    return said(folder)


def experiment(*argv: str) -> Experiment:
    """SCAFFOLD on the digits: four of eight clients, seven rounds, checkpoints 0, 2, 4, 6 and 7."""
    cohorts: dict[str, Any] = {"clients": 8, "participation": 0.5}
    schedule: dict[str, Any] = {"rounds": 7, "checkpoint_every": 2}
    schedule |= {"local_steps": 2, "batch_size": 32}
    return Experiment([digits], [mlp], algorithm="scaffold", argv=argv, **cohorts, **schedule)


def said(folder: Path) -> str:
    return Path(f"{folder}.log").read_text()


def results(folder: Path) -> dict[str, Any]:
    """The scalars but for times, and every bit of the model: kills must not change them."""
    with (folder / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    table = [{k: v for k, v in row.items() if not k.startswith("time/")} for row in rows]
    state = torch.load(folder / "model.pt", weights_only=True)
    return {"metrics": table, "model": {name: t.numpy().tobytes() for name, t in state.items()}}


def steps_in_tensorboard(folder: Path) -> list[list[int]]:
    """The different sequences of steps that the scalars have, as TensorBoard reads them."""
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    return sorted(
        {tuple(scalar.step for scalar in events.Scalars(tag)) for tag in events.Tags()["scalars"]}
    )


# -------------------------------------------------------------------- to die at a chosen instant


def die(*_: Any, **__: Any) -> None:
    """End as `kill -9` ends a process."""
    os.kill(os.getpid(), signal.SIGKILL)


def at_call(
    number: int, owner: Any, name: str, do: Callable[..., Any] = die, rank: int | None = 0
) -> Prepare:
    """On one or every rank, replace the n-th call of `owner.name` by `do(function, *args)`."""
    return partial(_replace, number, owner, name, do, rank)


def _replace(
    number: int, owner: Any, name: str, do: Callable[..., Any], rank: int | None, this: int
) -> None:
    function, calls = getattr(owner, name), 0

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        return do(function, *args, **kwargs) if calls == number else function(*args, **kwargs)

    if rank in (this, None):
        setattr(owner, name, counted)
