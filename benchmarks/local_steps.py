"""Ways to train the same clients, in turns: a bare loop, FL-Simulator, those of `ways.py`.

    OMP_NUM_THREADS=1 python benchmarks/local_steps.py --model pfl --rounds 5
    python benchmarks/local_steps.py --model resnet18_gn --algorithm fedtoga --epochs 5
    --precision bf16-mixed --accelerator cuda --fl-simulator DIR --only sequential,graph,branches

The bare loop is FedAvg as one would write it by hand: its model reset for each client, a loss, a
step, a sum.
`--fl-simulator` adds a round of its FedSpeed, as many times what one client's visit takes there as
there are clients, without its server; ours then have its crops, clipping and weight decay, as with
`--like-fl-simulator`. Every way says how far its weights are from the first one's after one round;
one that fails is left out.
"""

import argparse
import atexit
import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from math import inf
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

import fl_simulator
import torch
from contest import MODELS, SIZES, federation, table, take_turns, timed, where
from lightning.fabric import Fabric
from predictions import predicted
from torch import Tensor, nn
from torch.nn import functional as F
from ways import switched

from fl_lightning import ClientData, Federation
from fl_lightning.distributed.launch import keep_freed_memory

THEIRS = "FL-Simulator FedSpeed"


def bare_loop(fabric: Fabric, model: nn.Module, clients: ClientData) -> Callable[[], None]:
    """One round of FedAvg by hand: the floor for Python and eager PyTorch with this network."""
    start = {name: p.detach().clone() for name, p in model.named_parameters()}

    def round() -> None:
        total = {name: torch.zeros_like(p) for name, p in start.items()}
        for client in range(clients.num_clients):
            model.load_state_dict(start, strict=False)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for x, y in clients.visit(client, 0):
                optimizer.zero_grad()
                with fabric.autocast():
                    loss = F.cross_entropy(model(x), y)
                loss.backward()
                optimizer.step()
            for name, p in model.named_parameters():
                total[name] += p.detach()

    return round


def their_visits(path: Path, model: str, device: str, samples: int) -> Callable[[], None]:
    """A visit of one client to FL-Simulator, in a process of its own."""
    here, there = get_context("spawn").Pipe()
    get_context("spawn").Process(
        target=_their_work, args=(there, path, model, device, samples), daemon=True
    ).start()
    there.close()
    atexit.register(here.send, False)

    def visit() -> None:
        here.send(True)
        here.recv()

    return visit


def _their_work(pipe: Connection, path: Path, model: str, device: str, samples: int) -> None:
    fl_simulator.SAMPLES = (
        samples  # passes over a client's samples cost what one pass over as many samples does
    )
    fl_simulator.work(pipe, "wall", "theirs", path, model, "fedspeed", device)


def set_up(
    makers: Mapping[str, Callable[[], tuple[Callable[[], Any], Federation | None]]],
    device: str,
    seconds: float,
) -> dict[str, Callable[[], Any]]:
    """A round of each contestant. Prints the time of its first one, and distances of weights."""
    rounds: dict[str, Callable[[], Any]] = {}
    first: Tensor | None = None
    began = time.perf_counter()
    for name, make in makers.items():
        started, note = time.perf_counter(), ""
        if started - began > seconds:
            print(f"{name}: left out, no time")
            continue
        try:
            round, ours = make()
            begun = ours and ours.w.detach().clone()
            timed(round, device)
            ready = time.perf_counter() - started
            if ours and begun is not None:
                w = ours.w.detach().clone()
                first = w if first is None else first
                off, moved = ((w - other).abs().max().item() for other in (first, begun))
                note = f"; weights moved by up to {moved:.1e}, are up to {off:.1e} from our first's"
            took = f"ready after {ready:.1f} s, a round takes {timed(round, device):.4f} s"
            print(f"{name}: {took}{note}", flush=True)
            rounds[name] = round
        except Exception as error:  # whatever it is, the others go on
            print(
                f"{name}: FAILED, {type(error).__name__}: {(str(error).splitlines() or [''])[0]}",
                flush=True,
            )
    return rounds


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", choices=MODELS, default="lenet")
    parser.add_argument("--algorithm", default="fedavg")
    parser.add_argument("--precision", default="32-true")
    parser.add_argument("--accelerator", default="cpu")
    parser.add_argument("--samples", type=int, help="fewer samples a client than the benchmark's")
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--fl-simulator", type=Path, help="a checkout of github.com/woodenchild95/FL-Simulator"
    )
    parser.add_argument(
        "--like-fl-simulator", action="store_true", help="with crops, clipping and weight decay"
    )
    parser.add_argument(
        "--seconds", type=float, default=inf, help="after so many, further ways are left out"
    )
    parser.add_argument(
        "--only", default="bare,sequential,sequential-compile,stacked,stacked-compile"
    )
    options = parser.parse_args()
    keep_freed_memory()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    fabric = Fabric(accelerator=options.accelerator, devices=1, precision=options.precision)
    sizes: dict[str, Any] = {
        "samples": 500,
        "batch": 50,
        **SIZES.get(options.model, {}),
        "epochs": options.epochs,
    }
    sizes |= {"clients": options.clients, "cohort": options.clients}
    sizes |= {"samples": options.samples} if options.samples else {}
    sizes["like_fl_simulator"] = options.like_fl_simulator or options.fl_simulator is not None
    if sizes["like_fl_simulator"] and "bare" in options.only.split(","):
        raise SystemExit("a bare loop neither crops nor clips nor decays: leave it out of --only")
    ours = partial(federation, fabric, options.model, options.algorithm, **sizes)

    def bare() -> tuple[Callable[[], Any], None]:
        return bare_loop(fabric, fabric.to_device(MODELS[options.model]()), ours().clients), None

    def in_way(way: str) -> tuple[Callable[[], Any], Federation]:
        run = ours(way=way)
        return switched(way, run.train_round), run

    def theirs() -> tuple[Callable[[], Any], None]:
        samples = options.epochs * sizes["samples"]
        return their_visits(options.fl_simulator, options.model, options.accelerator, samples), None

    print(where())
    what = f"{options.model}, {options.algorithm}, {options.precision}"
    print(f"{what}, {fabric.device}, {torch.get_num_threads()} thread(s)")
    if fabric.device.type == "cpu":
        print("no GPU: what would be CUDA graphs and streams are plain calls, one after another")
    ways = {way: bare if way == "bare" else partial(in_way, way) for way in options.only.split(",")}
    makers = {**({THEIRS: theirs} if options.fl_simulator else {}), **ways}
    rounds = set_up(makers, options.accelerator, options.seconds)
    if not rounds:
        raise SystemExit("none of them ran")
    seconds = take_turns(rounds, options.rounds, options.accelerator, warm_up=0)
    if THEIRS in seconds:  # one of so many visits
        seconds[THEIRS] = [options.clients * each for each in seconds[THEIRS]]
    notes = {way: predicted(options.model, options.algorithm, way) for way in seconds}
    print(table(seconds, options.clients * sizes["samples"] * options.epochs, notes))
    ran = [way for way in seconds if way not in (THEIRS, "bare")]
    if ran:
        best = min(ran, key=lambda way: median(seconds[way]))
        theirs_over_ours = (
            [median(seconds[THEIRS]) / median(seconds[best])] if THEIRS in seconds else []
        )
        ratio = "".join(f"; {THEIRS} takes {each:.1f} times as long" for each in theirs_over_ours)
        print(f"=> {what}: best is {best}, {median(seconds[best]):.4f} s a round{ratio}")


if __name__ == "__main__":
    main()
