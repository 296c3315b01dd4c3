"""CPU time of a round outside of local steps: what a client and a round cost beside training.

    OMP_NUM_THREADS=1 python benchmarks/outside.py
    OMP_NUM_THREADS=1 python benchmarks/outside.py --models linear --ways sequential --profile

Rounds of ten and of twenty clients take turns; each client takes one step on two samples. Batches,
gradients, terms and updates of the steps are timed and taken off. Of each size the least of many
rounds counts, in CPU time of the process, so that other work on the machine hardly shows. What
twenty clients cost more is the clients', the rest is the round's.

The linear model has 30,730 parameters: it shows what Python and calls of PyTorch take, as in front
of a GPU. LeNet's 797,962 are passed over several times in each visit; on a GPU these passes are
the card's.
"""

import argparse
import cProfile
import pstats
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any
from unittest.mock import patch

import torch
from contest import MODELS, federation, where
from lightning.fabric import Fabric

from fl_lightning import Federation
from fl_lightning.data.client_data import Batches
from fl_lightning.distributed.launch import keep_freed_memory
from fl_lightning.executors import local_step, stacked
from fl_lightning.executors.sequential import SequentialExecutor

FEW, MANY = 10, 20
"""Clients of the two rounds: whole groups of the ways that stack ten."""


class Steps:
    """The CPU time that local steps take."""

    def __init__(self) -> None:
        self.seconds, self._inside = 0.0, False

    def timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, whose calls count, but not those within another call that counts."""

        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if self._inside:
                return function(*args, **kwargs)
            self._inside, began = True, time.process_time()
            try:
                return function(*args, **kwargs)
            finally:
                self._inside, self.seconds = False, self.seconds + time.process_time() - began

        return call

    @contextmanager
    def watched(self) -> Iterator[None]:
        """A context in which what belongs to steps counts."""
        plain = local_step._for_each
        with ExitStack() as stack:
            for owner, name in (
                (Batches, "__getitem__"),
                (SequentialExecutor, "_step"),
                (stacked, "step_rows"),
            ):
                stack.enter_context(patch.object(owner, name, self.timed(getattr(owner, name))))
            stack.enter_context(
                patch.object(local_step, "_for_each", lambda one: self.timed(plain(one)))
            )
            yield


def outside(steps: Steps, run: Federation) -> float:
    """CPU seconds of a round without its steps."""
    steps.seconds, began = 0.0, time.process_time()
    run.train_round()
    return time.process_time() - began - steps.seconds


def measured(model: str, method: str, way: str, rounds: int) -> tuple[float, float]:
    """Milliseconds of CPU outside of steps, of a client and of a round."""
    steps, fabric = Steps(), Fabric(accelerator="cpu", devices=1)
    with steps.watched():
        runs = [made(fabric, model, method, way, clients) for clients in (FEW, MANY)]
        for run in 2 * runs:
            run.train_round()
        few, many = (
            1e3 * min(each)
            for each in zip(
                *([outside(steps, run) for run in runs] for _ in range(rounds)), strict=True
            )
        )
    client = (many - few) / (MANY - FEW)
    return client, few - FEW * client


def addition() -> float:
    """Microseconds of CPU of an addition of two numbers in PyTorch: how fast the machine is now."""
    one, seconds = torch.ones(()), list[float]()
    for _ in range(100):
        began = time.process_time()
        for _ in range(100):
            one + one
        seconds.append(time.process_time() - began)
    return 1e4 * min(seconds)


def made(fabric: Fabric, model: str, method: str, way: str, clients: int) -> Federation:
    """A federation of so many clients, of one step each."""
    return federation(fabric, model, method, way=way, clients=clients, samples=2, batch=2)


def profiled(model: str, method: str, way: str, rounds: int) -> None:
    """Print the functions that take the most time by themselves."""
    run = made(Fabric(accelerator="cpu", devices=1), model, method, way, MANY)
    run.train_round()
    with cProfile.Profile() as profile:
        for _ in range(rounds):
            run.train_round()
    pstats.Stats(profile).strip_dirs().sort_stats("tottime").print_stats(40)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--models", choices=MODELS, nargs="+", default=["linear", "lenet"])
    parser.add_argument("--methods", nargs="+", default=["fedavg", "fedtoga"])
    parser.add_argument("--ways", nargs="+", default=["sequential", "stacked10"])
    parser.add_argument("--rounds", type=int, default=40, help="rounds of each size")
    parser.add_argument("--profile", action="store_true", help="profile instead")
    options = parser.parse_args(arguments)
    keep_freed_memory()
    print(f"{where()}\nan addition of two numbers takes {addition():.2f} us")
    print("| model | method | clients | ms a client | ms a round |\n|---|---|---|---|---|")
    for model in options.models:
        for method in options.methods:
            for way in options.ways:
                if options.profile:
                    profiled(model, method, way, options.rounds)
                    continue
                client, round = measured(model, method, way, options.rounds)
                print(f"| {model} | {method} | {way} | {client:.3f} | {round:.2f} |", flush=True)


if __name__ == "__main__":
    main()
