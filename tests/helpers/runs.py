"""Runs in processes of their own, one a rank, that can be killed: a recipe's way, forked instead of started anew."""

import csv
import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from socket import gethostname
from typing import Any

import lightning_utilities.core.rank_zero as utilities_rank_zero
import torch
from lightning.fabric.plugins.environments.lightning import find_free_network_port
from lightning.fabric.utilities.rank_zero import rank_zero_only
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from fl_lightning.data import sources
from fl_lightning.experiment import Experiment
from fl_lightning.models import mlp

logging.getLogger("tensorboard").setLevel(logging.ERROR)  # it warns of every resumption

Prepare = Callable[[int], None]
"""Called with the rank in each process before the run begins."""


def begin(
    folder: Path, *argv: str, ranks: int = 1, prepare: Prepare = lambda rank: None
) -> list[BaseProcess]:
    """Start the ranks of a run in `folder`, resuming what lies there; what they say goes to `<folder>.log`."""
    if (folder / "config.yaml").exists():
        argv = (*argv, "--resume")
    argv = ("--run-dir", str(folder), "--accelerator", "cpu", "--devices", str(ranks), *argv)
    argv = argv if ranks == 1 else (*argv, "--strategy", "ddp")
    port, fork = find_free_network_port(), get_context("fork")
    lives = [
        fork.Process(target=_live, args=(argv, rank, ranks, port, prepare)) for rank in range(ranks)
    ]
    for life in lives:
        life.start()
    return lives


def end(lives: list[BaseProcess], seconds: float = 60.0) -> list[int | None]:
    """Wait for all; their exit codes, None for one that hangs."""
    for life in lives:
        life.join(seconds)
    codes = [life.exitcode for life in lives]
    for life in lives:
        life.kill()
        life.join()
    return codes


def _sort_behind_the_others(folder: Path) -> None:
    """TensorBoard reads files by name, a second and a process: in one second 10004 would come before 9998."""
    while any(
        file.name > f"events.out.tfevents.{int(time.time())}.{gethostname()}.{os.getpid()}."
        for file in folder.glob("events.*")
    ):
        time.sleep(0.05)


def _live(argv: tuple[str, ...], rank: int, ranks: int, port: int, prepare: Prepare) -> None:
    folder = Path(argv[1])
    _sort_behind_the_others(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    log = os.open(f"{folder}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1), os.dup2(log, 2)
    sys.stdout, sys.stderr = (os.fdopen(n, "w", buffering=1, closefd=False) for n in (1, 2))
    if ranks > 1:  # as the launcher sets it
        address = {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
            "NODE_RANK": 0,
            "WORLD_SIZE": ranks,
        }
        os.environ |= {name: str(value) for name, value in {**address, "LOCAL_RANK": rank}.items()}
        rank_zero_only.rank = utilities_rank_zero.rank_zero_only.rank = rank
    torch.set_num_threads(1)
    prepare(rank)
    experiment(*argv).run()


def experiment(*argv: str) -> Experiment:
    """SCAFFOLD on the digits: four of eight clients a round, seven rounds, checkpoints after 0, 2, 4, 6 and 7."""
    options: dict[str, Any] = {
        "clients": 8,
        "participation": 0.5,
        "rounds": 7,
        "batch_size": 32,
        "checkpoint_every": 2,
    }
    return Experiment([sources.digits], [mlp], algorithm="scaffold", argv=argv, **options)


def said(folder: Path) -> str:
    """What all processes of the run have said."""
    return Path(f"{folder}.log").read_text()


def results(folder: Path) -> dict[str, Any]:
    """What must not depend on kills: the scalars but for times, and every bit of the model."""
    with (folder / "metrics.csv").open(newline="") as file:
        table = [
            {k: v for k, v in row.items() if not k.startswith("time/")}
            for row in csv.DictReader(file)
        ]
    state = torch.load(folder / "model.pt", weights_only=True)
    return {"metrics": table, "model": {name: t.numpy().tobytes() for name, t in state.items()}}


def steps_in_tensorboard(folder: Path) -> list[list[int]]:
    """The different sequences of steps that the scalars have, as TensorBoard reads them."""
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    return sorted(
        {tuple(scalar.step for scalar in events.Scalars(tag)) for tag in events.Tags()["scalars"]}
    )


# ------------------------------------------------------------------------------------------- to die at a chosen instant


def die(*_: Any, **__: Any) -> None:
    """End as `kill -9` ends a process."""
    os.kill(os.getpid(), signal.SIGKILL)


def at_call(
    number: int, owner: Any, name: str, do: Callable[..., Any] = die, rank: int = 0
) -> Prepare:
    """On one rank, let `do(function, *args)` take the place of the n-th call of a function of `owner`."""
    return partial(_replace, number, owner, name, do, rank)


def _replace(
    number: int, owner: Any, name: str, do: Callable[..., Any], rank: int, this: int
) -> None:
    function, calls = getattr(owner, name), 0

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        return do(function, *args, **kwargs) if calls == number else function(*args, **kwargs)

    if this == rank:
        setattr(owner, name, counted)
