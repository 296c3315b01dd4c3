"""Code that the benchmarks share: workloads, contestants in turns, tables, the machine."""

import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from datetime import date
from functools import partial
from pathlib import Path
from statistics import median
from threading import Event, Thread
from typing import Any

import torch
from lightning.fabric import Fabric
from torch import nn
from torch.optim import SGD
from ways import executor_of

from fl_lightning import ClientData, DeviceDataset, Federation
from fl_lightning.algorithms.registry import ALGORITHMS
from fl_lightning.data import CropFlip, schemes
from fl_lightning.federation.lockstep import LockstepExecutor
from fl_lightning.federation.sampling import UniformSampling
from fl_lightning.models import fedavg_cnn, lenet, mlp, resnet18_gn
from fl_lightning.terms import Clip


def pfl_cnn() -> nn.Module:
    """The network of pfl-research's CIFAR-10 benchmark: 1,626,442 parameters."""
    layers = [
        nn.Conv2d(3, 32, 3),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.25),
    ]
    layers += [nn.Flatten(), nn.Linear(12544, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 10)]
    for layer in layers:
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.xavier_uniform_(layer.weight)
    return nn.Sequential(*layers)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "pfl": pfl_cnn,
    "lenet": lenet,
    "resnet18_gn": resnet18_gn,
    "cnn": fedavg_cnn,
    "mlp": partial(mlp, 3 * 32 * 32, 10),
    "linear": lambda: nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 10)),
}
SIZES = {"pfl": {"clients": 1000, "cohort": 50, "samples": 50, "batch": 10}}
"""What a model's benchmark has if not 10 clients of 500 samples in batches of 50."""


def federation(
    fabric: Fabric,
    model: str,
    algorithm: str = "fedavg",
    *,
    clients: int = 10,
    cohort: int | None = None,
    samples: int = 500,
    batch: int = 50,
    epochs: int = 1,
    like_fl_simulator: bool = False,
    way: str = "sequential",
    seed: int = 0,
    lockstep: bool = False,
) -> Federation:
    """A federation on random images of CIFAR-10's shape.

    `way` says how clients train (see `ways.py`), `like_fl_simulator` adds FL-Simulator's crops,
    clipping and weight decay. `lockstep` lets it train together with others.
    """
    torch.manual_seed(seed)
    chosen = ALGORITHMS[algorithm]()
    if like_fl_simulator:
        x = torch.randint(0, 256, (clients * samples, 3, 32, 32), dtype=torch.uint8)
        data = DeviceDataset(
            x, torch.arange(len(x)) % 10, tuple("0123456789"), (0.5,) * 3, (0.25,) * 3
        )
        chosen = chosen.with_outer_terms(
            Clip(10.0), local=partial(SGD, lr=0.1, weight_decay=1e-3, fused=True)
        )
    else:
        x = torch.randn(clients * samples, 3, 32, 32)
        data = DeviceDataset(x, torch.arange(len(x)) % 10, tuple("0123456789"))
    data = data.to(fabric.device)
    split = ClientData(
        data,
        schemes.iid(data.y, clients, 0),
        batch_size=batch,
        epochs=epochs,
        shuffle=like_fl_simulator,
        augment=CropFlip(padding=4) if like_fl_simulator else None,
    )
    share, executor = UniformSampling((cohort or clients) / clients), executor_of(way, batch)
    executor = partial(LockstepExecutor, executor) if lockstep else executor
    return Federation(
        fabric,
        MODELS[model](),
        chosen,
        split,
        rounds=10**6,
        sampler=share,
        executor=executor,
        seed=seed,
    )


def evaluate(federation: Federation, images: torch.Tensor) -> None:
    """One pass of the global model over these images."""
    module = federation.load_global()
    with torch.inference_mode(), federation.fabric.autocast():
        for part in images.split(1000 if images.is_cuda else 500):
            module(part)


def where() -> str:
    """Date, machine, versions, command, and what else the machine is doing."""
    cpu = next(
        (line.split(":")[1].strip() for line in _lines("/proc/cpuinfo") if "model name" in line),
        "unknown CPU",
    )
    bf16 = [
        flag
        for flag in ("amx_bf16", "avx512_bf16")
        if any(flag in line for line in _lines("/proc/cpuinfo"))
    ]
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    return (
        f"{date.today()}  {os.cpu_count()} x {cpu} ({', '.join(bf16) or 'no bf16'}), {gpu}; "
        f"Python {platform.python_version()}, torch {torch.__version__}\n"
        f"{' '.join(['python', *sys.argv])}   OMP_NUM_THREADS={os.environ.get('OMP_NUM_THREADS')}, "
        f"load {', '.join(f'{load:.1f}' for load in os.getloadavg())}"
    )


def table(
    seconds: Mapping[str, list[float]], samples: int, notes: Mapping[str, str] | None = None
) -> str:
    """Medians, their range, samples a second, and the first contestant's median over each."""
    first = median(next(iter(seconds.values())))
    rows = [f"{'':34}{'s/round':>9}{'min':>8}{'max':>8}{'samples/s':>11}{'first/this':>12}"]
    for name, each in seconds.items():
        m = median(each)
        figures = f"{m:9.3f}{min(each):8.3f}{max(each):8.3f}{samples / m:11.0f}{first / m:12.2f}"
        rows.append(f"{name:34}{figures}  {(notes or {}).get(name, '')}")
    return "\n".join(rows)


def take_turns(
    contestants: Mapping[str, Callable[[], Any]], turns: int, device: str = "cpu", warm_up: int = 1
) -> dict[str, list[float]]:
    """Seconds of each turn of each contestant, alternating; warm-up passes do not count."""
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in range(warm_up + turns):
        for name, round in contestants.items():
            each = timed(round, device)
            if turn >= warm_up:
                seconds[name].append(each)
    return seconds


def timed(round: Callable[[], Any], device: str = "cpu") -> float:
    """Seconds that a round takes, and the device with it."""
    started = time.perf_counter()
    round()
    if device != "cpu":
        torch.cuda.synchronize()
    return time.perf_counter() - started


def run(command: list[str], **environment: str) -> tuple[float, float]:
    """X and peak memory in MB, children included, of a program that prints `median X s/round`."""
    process = subprocess.Popen(
        command,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    done, peak = Event(), [0.0]

    def watch() -> None:
        while not done.wait(5.0):
            peak[0] = max(peak[0], _memory_of_family(process.pid))

    watcher = Thread(target=watch, daemon=True)
    watcher.start()
    out, errors = process.communicate()
    done.set()
    watcher.join()
    found = [
        word
        for line in out.splitlines()
        if "median" in line
        for word in [line.split("median")[1].split()[0]]
    ]
    if not found:
        raise SystemExit(f"{' '.join(command)} printed no median:\n{out[-2000:]}\n{errors[-3000:]}")
    return float(found[0]), peak[0]


def _memory_of_family(root: int) -> float:
    """Proportional memory in MB of a process and all that descend from it."""
    status = {int(folder.name): _lines(folder / "stat") for folder in Path("/proc").glob("[0-9]*")}
    parent = {
        pid: int(line[0].rpartition(")")[2].split()[1]) for pid, line in status.items() if line
    }
    family = {root}
    while more := {pid for pid, above in parent.items() if above in family} - family:
        family |= more
    lines = [
        line
        for pid in family
        for line in _lines(f"/proc/{pid}/smaps_rollup")
        if line.startswith("Pss:")
    ]
    return sum(int(line.split()[1]) for line in lines) / 1024


def _lines(path: str | Path) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []
