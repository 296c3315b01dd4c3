"""What it costs to keep clients' states: processor time in the client store, without training.

    OMP_NUM_THREADS=1 python benchmarks/client_states.py --model lenet
    OMP_NUM_THREADS=1 python benchmarks/client_states.py --model resnet18_gn --clients 44

Ten clients a round read the state that FedTOGA keeps of each, a vector like the model, and write
another one. Every `--checkpoint-every` rounds the rows are retained, and the last two stay. Times
are those of the process, user and system, its thread included.
"""

import argparse
import resource
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from contest import where
from lightning.fabric import Fabric

from fl_lightning import models
from fl_lightning.distributed.launch import keep_freed_memory
from fl_lightning.federation.client_store import open_store
from fl_lightning.federation.sampling import UniformSampling
from fl_lightning.runs.converters import parse_bytes

COHORT, CPU = 10, torch.device("cpu")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", default="lenet", choices=["lenet", "resnet18_gn"])
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--checkpoint-every", type=int, default=60)
    parser.add_argument("--client-state-memory")
    o = parser.parse_args()
    keep_freed_memory()  # as a run does
    size = sum(p.numel() for p in getattr(models, o.model)().parameters())
    fabric, draw = Fabric(accelerator="cpu", devices=1), UniformSampling(COHORT / o.clients)
    states = [torch.randn(size) for _ in range(COHORT)]
    memory = o.client_state_memory and parse_bytes(o.client_state_memory)
    rounds, saves, walls = list[float](), list[float](), list[float]()
    with TemporaryDirectory() as folder:
        store = open_store(fabric, Path(folder, "rows"), o.clients, [{"h": states[0]}], memory)
        for round in range(o.rounds):
            begun, cohort = time.process_time(), draw(o.clients, 0, round)
            for k, client in enumerate(cohort):
                store.prefetch(cohort[k : k + 2])
                if store.has(client):
                    store.read(client, CPU)
                store.write(client, [{"h": states[k]}])
                store.wait_for_writes(but=1)
            store.commit(cohort)
            rounds.append(1e3 * (time.process_time() - begun))
            if (round + 1) % o.checkpoint_every == 0:
                begun, started = time.process_time(), time.perf_counter()
                store.retain(str(round))
                store.release(str(round - 2 * o.checkpoint_every))
                saves.append(1e3 * (time.process_time() - begun))
                walls.append(time.perf_counter() - started)
        disk = store.disk_bytes() / 1e6
    later, each = rounds[len(rounds) // 2 :], len(rounds)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    print(where())
    print(f"{o.model}: {size:,} numbers a client, {o.clients} clients, {each} rounds")
    print(f"a round: {sum(rounds) / each:.1f} ms; in the later half {sum(later) / len(later):.1f}")
    if saves:
        print(
            f"a checkpoint: {sum(saves) / len(saves):.0f} ms, and {max(walls):.2f} s of the clock"
        )
        print(f"both, a round: {(sum(rounds) + sum(saves)) / each:.1f} ms")
    print(f"peak of the process {peak:,.0f} MB, on disk {disk:,.0f} MB")


if __name__ == "__main__":
    main()
