"""Our rounds alone, on any number of ranks: what the other benchmarks start beside the peers.

    python benchmarks/ours.py --model pfl --ranks 2 --rounds 8 --precision bf16-mixed

`--model pfl` is pfl-research's CIFAR-10 benchmark: 1000 users x 50 images, 50 a round, one epoch, batch 10; the others
are 10 clients x 500 images, batch 50. Each rank takes OMP_NUM_THREADS threads.
"""

import argparse
import os
import time
from statistics import median

import torch
from contest import MODELS, federation
from lightning.fabric import Fabric

from fl_lightning.allocator import keep_freed_memory

SIZES = {"pfl": {"clients": 1000, "cohort": 50, "samples": 50, "batch": 10}}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", choices=MODELS, default="pfl")
    parser.add_argument("--algorithm", default="fedavg")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--precision", default="32-true")
    parser.add_argument("--accelerator", default="cpu")
    parser.add_argument("--width", type=int, default=0, help="Stacked, so many clients at once; 0 is Sequential")
    parser.add_argument("--clients", type=int, help="fewer clients than the benchmark, for a trial")
    options = parser.parse_args()
    keep_freed_memory()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    strategy = "ddp" if options.ranks > 1 else "auto"
    fabric = Fabric(
        accelerator=options.accelerator, strategy=strategy, devices=options.ranks, precision=options.precision
    )
    fabric.launch()
    sizes = dict(SIZES.get(options.model, {}))
    if options.clients:
        sizes.update(clients=options.clients, cohort=min(options.clients, sizes.get("cohort", 10)))
    ours = federation(fabric, options.model, options.algorithm, width=options.width, **sizes)
    seconds, busy = [], []
    for _ in range(options.rounds):
        started, worked = time.perf_counter(), time.process_time()
        ours.train_round()
        seconds.append(time.perf_counter() - started)
        busy.append(time.process_time() - worked)
    digest = ours.w.detach().double().abs().sum().item()
    fabric.print(
        f"ours: median {median(seconds[1:]):.4f} s/round, min {min(seconds[1:]):.4f} s/round, "
        f"CPU of this rank {median(busy[1:]):.4f} s/round, digest {digest:.6f}"
    )


if __name__ == "__main__":
    main()
