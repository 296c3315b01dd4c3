"""A client-epoch of FL-Simulator and of ours.

500 images, batch 50, crops and flips, weight decay, clipping to norm 10.

    OMP_NUM_THREADS=2 python benchmarks/fl_simulator.py --path FL-Simulator --model lenet --method
    fedavg,fedsam

FL-Simulator (github.com/woodenchild95/FL-Simulator) has no licence: fetch it yourself; nothing of
it is here. Every contestant lives in a process of its own, set up as it ships, and they take turns.
Ours is a whole round of one client, with server and sums, on as many threads; `--ranks 2` adds a
whole round of ten clients on two ranks of one thread, a tenth of which counts. `--precision` of
ours: both by default. `--ways "sequential,compile"` lets us compile too. Without `--path`, ours
alone.
"""

import argparse
import os
import resource
import sys
import time
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from contest import federation, run, table, where
from lightning.fabric import Fabric

from fl_lightning.distributed.launch import keep_freed_memory

SAMPLES, BATCH, CLIENTS = 500, 50, 10
THEIR_MODEL = {"lenet": "LeNet", "resnet18_gn": "ResNet18"}
THEIR_METHOD = {"fedavg": "fedavg", "fedsam": "fedsam", "fedspeed": "fedspeed"}


def theirs(path: Path, model: str, method: str, device: str) -> Callable[[], Any]:
    """One client-epoch of FL-Simulator: what its server does for every client of a round."""
    import numpy as np

    sys.path.insert(0, str(path))
    import client as clients
    import models
    import utils

    models.F = torch.nn.functional  # its LeNet needs it, its import is commented out

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "2")))
    make = {"fedavg": clients.fedavg, "fedsam": clients.fedsam, "fedspeed": clients.fedspeed}[
        method
    ]
    args = SimpleNamespace(
        weight_decay=1e-3, dataset="CIFAR10", batchsize=BATCH, local_epochs=1, rho=0.1, lamb=0.1
    )
    rng = np.random.default_rng(0)
    x = rng.standard_normal((SAMPLES, 3, 32, 32)).astype(np.float32)
    y = (np.arange(SAMPLES) % 10).reshape(-1, 1)

    def network() -> torch.nn.Module:
        return models.client_model(THEIR_MODEL[model], 10)

    vector = utils.get_mdl_params(network())
    received = {"Params_list": vector, "Local_dual_correction": torch.zeros_like(vector)}

    def epoch() -> None:
        make(
            device=device,
            model_func=network,
            received_vecs=received,
            dataset=(x, y),
            lr=0.1,
            args=args,
        ).train()

    return epoch


def ours(model: str, method: str, precision: str, way: str, device: str) -> Callable[[], Any]:
    """One round of one client."""
    keep_freed_memory()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "2")))
    fabric = Fabric(accelerator=device, devices=1, precision=precision)
    return federation(
        fabric,
        model,
        method,
        clients=1,
        samples=SAMPLES,
        batch=BATCH,
        like_fl_simulator=True,
        way=way,
    ).train_round


def on_ranks(model: str, method: str, precision: str, way: str, ranks: int) -> float:
    """Seconds a client in our round of ten clients on several ranks of one thread."""
    command = [
        sys.executable,
        str(Path(__file__).with_name("ours.py")),
        "--model",
        model,
        "--algorithm",
        method,
    ]
    command += [
        "--ranks",
        str(ranks),
        "--precision",
        precision,
        "--way",
        way,
        "--like-fl-simulator",
        "--rounds",
        "4",
    ]
    return run(command, OMP_NUM_THREADS="1")[0] / CLIENTS


def work(pipe: Connection, clock: str, kind: str, *arguments: Any) -> None:
    """A contestant's process: one client-epoch whenever it is asked."""
    device, now = arguments[-1], time.process_time if clock == "cpu" else time.perf_counter
    epoch = {"theirs": theirs, "ours": ours}[kind](*arguments)
    while pipe.recv():
        started = now()
        epoch()
        if device == "cuda":
            torch.cuda.synchronize()
        pipe.send((now() - started, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--path", type=Path)
    parser.add_argument("--model", choices=THEIR_MODEL, default="lenet")
    parser.add_argument("--method", default="fedavg,fedsam")
    parser.add_argument("--precision", default="32-true,bf16-mixed")
    parser.add_argument("--ways", default="sequential", help="how our clients train, see ways.py")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument(
        "--clock", choices=["wall", "cpu"], default="wall", help="cpu: CPU seconds of all threads"
    )
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument(
        "--ranks", type=int, default=0, help="ours on so many ranks of one thread too, on the CPU"
    )
    options = parser.parse_args()
    print(where(), flush=True)
    context = get_context("spawn")
    for method in options.method.split(","):
        line_up: dict[str, tuple[Any, ...]] = {}
        if options.path:
            line_up[f"FL-Simulator {method}"] = (
                "theirs",
                options.path,
                options.model,
                THEIR_METHOD[method],
            )
        own = {
            f"ours {method} {precision} {way}": (options.model, method, precision, way)
            for precision in options.precision.split(",")
            for way in options.ways.split(",")
        }
        line_up |= {name: ("ours", *arguments) for name, arguments in own.items()}
        pipes, seconds, peaks = {}, {name: list[float]() for name in line_up}, {}
        ranked = {
            f"{name}, {options.ranks} ranks": arguments
            for name, arguments in own.items()
            if options.ranks
        }
        seconds |= {name: list[float]() for name in ranked}
        for name, arguments in line_up.items():
            pipes[name], end = context.Pipe()
            context.Process(
                target=work, args=(end, options.clock, *arguments, options.device), daemon=True
            ).start()
        for turn in range(options.turns + 1):  # the first turn warms up
            for name, pipe in pipes.items():
                pipe.send(True)
                each, peaks[name] = pipe.recv()
                seconds[name] += [each] * (turn > 0)
            for name, arguments in ranked.items() if turn else ():
                seconds[name].append(on_ranks(*arguments, options.ranks))
        for pipe in pipes.values():
            pipe.send(False)
        print(f"{options.model}, one client-epoch of {SAMPLES} images, batch {BATCH}")
        print(
            table(seconds, SAMPLES, {name: f"peak {peak:.0f} MB" for name, peak in peaks.items()}),
            flush=True,
        )
    print(where().splitlines()[-1])


if __name__ == "__main__":
    main()
