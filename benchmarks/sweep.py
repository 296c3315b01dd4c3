"""Seeds of one run as rows of one program, beside the same runs one after another.

    OMP_NUM_THREADS=1 python benchmarks/sweep.py --runs 8 --rounds 2 --turns 3
    python benchmarks/sweep.py --accelerator cuda --way stacked-graph --alone stacked-graph

The runs are those of `contest.py`, without evaluation. Each turn trains some rounds of all runs in
each way; a time is that of one round of all runs. CPU time counts on a CPU, the clock on a GPU.
"""

import argparse
import os
import time
from collections.abc import Sequence
from functools import partial
from statistics import median
from typing import Any

import torch
from contest import MODELS, SIZES, federation, where
from lightning.fabric import Fabric

from fl_lightning import Federation
from fl_lightning.distributed.launch import keep_freed_memory
from fl_lightning.federation.lockstep import Turn, ask, run_in_lockstep


def one_after_another(runs: Sequence[Federation], rounds: int) -> None:
    """Train some rounds of each run."""
    for run in runs:
        for _ in range(rounds):
            run.train_round()


def in_lockstep(runs: Sequence[Federation], rounds: int) -> None:
    """Train some rounds of all runs as one program."""

    def train(run: Federation) -> None:
        ask(run)
        one_after_another([run], rounds)

    turns = [Turn(partial(train, run)) for run in runs]
    run_in_lockstep(turns)
    for error in filter(None, (turn.error for turn in turns)):
        raise error


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", choices=MODELS, default="lenet")
    parser.add_argument("--algorithm", default="fedavg")
    parser.add_argument("--precision", default="32-true")
    parser.add_argument("--accelerator", default="cpu")
    parser.add_argument("--runs", type=int, default=8)
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--samples", type=int, help="fewer samples a client than the benchmark's")
    parser.add_argument("--rounds", type=int, default=2, help="rounds of a turn")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--way", default="stacked", help="how all runs train, see ways.py")
    parser.add_argument("--alone", default="sequential", help="how one run trains")
    options = parser.parse_args()
    keep_freed_memory()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    fabric = Fabric(accelerator=options.accelerator, devices=1, precision=options.precision)
    sizes: dict[str, Any] = {**SIZES.get(options.model, {}), "clients": options.clients}
    sizes |= {"samples": options.samples} if options.samples else {}
    make = partial(federation, fabric, options.model, options.algorithm, **sizes)
    seeds = range(options.runs)
    apart = [make(way=options.alone, seed=seed) for seed in seeds]
    together = [make(way=options.way, seed=seed, lockstep=True) for seed in seeds]
    ways = {
        "one after another": partial(one_after_another, apart),
        "one program": partial(in_lockstep, together),
    }
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    clock = time.process_time if fabric.device.type == "cpu" else time.perf_counter
    print(where())
    print(f"{options.runs} runs of {options.model}, {options.algorithm}, {options.precision}")
    for run in (*apart, *together):
        run.prepare()
    for turn in range(1 + options.turns):  # the first warms up
        for way, train in ways.items():
            began = clock()
            train(options.rounds if turn else 1)
            if fabric.device.type == "cuda":
                torch.cuda.synchronize()
            seconds[way].append((clock() - began) / options.rounds)
    off = max(
        (one.w - other.w).detach().abs().max().item()
        for one, other in zip(apart, together, strict=True)
    )
    for way, found in seconds.items():
        print(
            f"{way}: median {median(found[1:]):.3f} s, {min(found[1:]):.3f} to {max(found[1:]):.3f}"
        )
    print(f"after {apart[0].round} rounds weights of a seed differ by up to {off:.1e}")
    ratio = median(seconds["one program"][1:]) / median(seconds["one after another"][1:])
    what = f"{options.model}, {options.algorithm}, {options.precision}"
    print(f"=> {what}: {options.runs} runs as one program take {ratio:.2f} of their time alone")


if __name__ == "__main__":
    main()
