"""Rounds a second and resident memory from a hundred clients to a million, ten of them a round.

    OMP_NUM_THREADS=1 python benchmarks/many_clients.py --passes 3
    OMP_NUM_THREADS=1 python benchmarks/many_clients.py --only feddyn --client-state-memory 128MiB

FedAvg without states trains a small perceptron; FedDyn keeps 3.2 MB for each client of a LeNet.
Clients hold ten samples of a common pool in skewed proportions, one batch. Every point is a process
of its own; points take turns in every pass. `cpu ms` is a round's time on the processor, which
others on the machine disturb least. Memory is in MB, without what a process holds after its imports
and for the pool: `rounds` the most that was resident while rounds ran, `set-up` before them, the
split's own work included; `lists` what of it are arrays with an entry for each client or sample.
`ckpt ms` is a second checkpoint of the same round, so without the rows' way to the disk; `cached`
what the system's memory held of the rows' files at the end, out of `disk`.
"""

import argparse
import json
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from statistics import median
from tempfile import mkdtemp

import torch
from contest import where
from lightning.fabric import Fabric

from fl_lightning import ClientData, DeviceDataset, Federation
from fl_lightning.algorithms.registry import ALGORITHMS
from fl_lightning.callbacks import Checkpoint
from fl_lightning.data import schemes
from fl_lightning.federation.sampling import UniformSampling
from fl_lightning.models import lenet, mlp
from fl_lightning.runs.converters import parse_bytes

COHORT, SAMPLES, POOL = 10, 10, 10_000
SIZES = {"fedavg": [10**k for k in (2, 3, 4, 5, 6)], "feddyn": [10**k for k in (2, 3, 4, 5)]}


def status(name: str) -> float:
    """A line of this process's status, in MB."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines[name].split()[0]) / 1e3


def forget_peak() -> None:
    """Let VmHWM begin anew."""
    Path("/proc/self/clear_refs").write_text("5")


def cached(folder: Path) -> float:
    """What the system's memory holds of a folder's files, in MB."""
    files = list(map(str, folder.glob("*.rows")))
    listed = (
        subprocess.run(["fincore", "-b", "-n", "-o", "RES", *files], capture_output=True, text=True)
        if files
        else None
    )
    return sum(map(int, listed.stdout.split())) / 1e6 if listed else 0.0


def measure(
    algorithm: str, clients: int, rounds: int, memory: str | None, folder: Path
) -> dict[str, float]:
    """One point."""
    torch.manual_seed(0)
    fabric, imported = Fabric(accelerator="cpu", devices=1), status("VmRSS")
    shape = (64,) if algorithm == "fedavg" else (3, 32, 32)
    pool = DeviceDataset(torch.randn(POOL, *shape), torch.arange(POOL) % 10, tuple("0123456789"))
    pooled = status("VmRSS") - imported
    started = time.perf_counter()
    split = schemes.label_prior(pool.y, clients, 0, alpha=0.3, reuse=True, size=SAMPLES)
    seconds = {"split s": time.perf_counter() - started}
    data = ClientData(pool, split, batch_size=SAMPLES)
    federation = Federation(
        fabric,
        mlp(64, 10) if algorithm == "fedavg" else lenet(),
        ALGORITHMS[algorithm](),
        data,
        rounds=rounds + 5,
        sampler=UniformSampling(COHORT / clients),
        state_dir=folder / "clients",
        client_state_memory=memory and parse_bytes(memory),
    )
    for _ in range(5):
        federation.train_round()
    setup = status("VmHWM") - imported - pooled
    forget_peak()
    times, busy = [], []
    for _ in range(rounds):
        started, begun = time.perf_counter(), time.process_time()
        federation.train_round()
        times.append(time.perf_counter() - started)
        busy.append(time.process_time() - begun)
    peak = status("VmHWM") - imported - pooled
    federation.server.round, checkpoint = 0, Checkpoint(folder)
    # the first names the data and puts all rows on disk, which others need not
    checkpoint.on_fit_start(federation)
    started = time.perf_counter()
    checkpoint.on_fit_start(federation)
    seconds["ckpt ms"] = 1e3 * (time.perf_counter() - started)
    lists = split.indices, split.offsets, data.sizes, federation.store.slot
    return {
        "rounds/s": 1 / median(times),
        "cpu ms": 1e3 * median(busy),
        "best ms": 1e3 * min(times),
        **seconds,
        "rounds": peak,
        "set-up": setup,
        "lists": sum(array.nbytes for array in lists) / 1e6,
        "disk": federation.store.disk_bytes() / 1e6,
        "cached": cached(folder / "clients"),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--passes", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--only", default="fedavg,feddyn")
    parser.add_argument("--client-state-memory", help="of FedDyn's rows, in this process")
    parser.add_argument("--point", help="algorithm:clients, in this process")
    options = parser.parse_args()
    if options.point:
        algorithm, clients = options.point.split(":")
        folder = Path(mkdtemp(prefix="many_clients-"))
        try:
            print(
                json.dumps(
                    measure(
                        algorithm, int(clients), options.rounds, options.client_state_memory, folder
                    )
                )
            )
        finally:
            shutil.rmtree(folder)
        return
    print(where(), flush=True)
    points = [
        (algorithm, clients)
        for algorithm in options.only.split(",")
        for clients in SIZES[algorithm]
    ]
    results = defaultdict[tuple[str, int], list[dict[str, float]]](list)
    for _ in range(options.passes):
        for point in points:
            command = [
                sys.executable,
                __file__,
                "--point",
                f"{point[0]}:{point[1]}",
                "--rounds",
                str(options.rounds),
            ]
            if options.client_state_memory:
                command += ["--client-state-memory", options.client_state_memory]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                raise SystemExit(done.stderr)
            results[point].append(json.loads(done.stdout))
    print(f"medians of {options.passes} passes")
    print(
        f"{'algorithm':10}{'clients':>10}"
        + "".join(f"{name:>10}" for name in results[points[0]][0])
    )
    for (algorithm, clients), each in results.items():
        numbers = "".join(f"{median(one[name] for one in each):10.1f}" for name in each[0])
        print(f"{algorithm:10}{clients:10,}{numbers}")
    print(where().splitlines()[-1])


if __name__ == "__main__":
    main()
