"""The cost of `--deterministic`: rounds with exact and with plain sums, in turns.

    OMP_NUM_THREADS=1 python benchmarks/exact_sum.py --model resnet18_gn --samples 50 --turns 3
    OMP_NUM_THREADS=1 python benchmarks/exact_sum.py --model lenet --ranks 2

10 clients, all in every round, one epoch in batches of 50. PyTorch's deterministic algorithms are
on for neither: on a CPU they change nothing here.
"""

import argparse

import torch
from contest import MODELS, federation, table, take_turns, where
from lightning.fabric import Fabric

from fl_lightning import Federation
from fl_lightning.distributed.launch import keep_freed_memory
from fl_lightning.federation.aggregation import RoundSums
from fl_lightning.federation.exact_sum import ExactSum

CLIENTS = 10


def megabytes(run: Federation) -> float:
    """What a rank sends to the others in a round."""
    training = run.local_training
    message, sums = training.rehearsal.message, training.sum_type
    total = RoundSums(run.server.initial_w, message, run.server.buffers, CLIENTS, sums).total
    return total.nbytes / 1e6


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", choices=MODELS, default="lenet")
    parser.add_argument("--algorithm", default="fedavg")
    parser.add_argument("--samples", type=int, default=100, help="of a client")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--turns", type=int, default=5)
    options = parser.parse_args()
    keep_freed_memory()
    torch.set_num_threads(1)
    fabric = Fabric(
        accelerator="cpu", devices=options.ranks, strategy="ddp" if options.ranks > 1 else "auto"
    )
    fabric.launch()
    plain, exact = (
        federation(
            fabric, options.model, options.algorithm, clients=CLIENTS, samples=options.samples
        )
        for _ in range(2)
    )
    exact.local_training.deterministic, exact.local_training.sum_type = True, ExactSum
    runs = {"plain": plain, "exact": exact}
    fabric.print(where())
    seconds = take_turns({name: run.train_round for name, run in runs.items()}, options.turns)
    notes = {name: f"{megabytes(run):.1f} MB all-reduced" for name, run in runs.items()}
    fabric.print(f"{options.model}, {options.ranks} rank(s)")
    fabric.print(table(seconds, CLIENTS * options.samples, notes))


if __name__ == "__main__":
    main()
