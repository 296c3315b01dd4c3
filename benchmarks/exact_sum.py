"""The cost of `--deterministic`: rounds with exact and with plain sums, in turns.

    OMP_NUM_THREADS=1 python benchmarks/exact_sum.py --model resnet18_gn --samples 50 --turns 3
    OMP_NUM_THREADS=1 python benchmarks/exact_sum.py --model lenet --ranks 2

10 clients, all in every round, one epoch in batches of 50. PyTorch's deterministic algorithms are
on for neither: on a CPU they change nothing here.
"""

import argparse
from statistics import median
from time import perf_counter

import torch
from contest import MODELS, federation, table, take_turns, where
from lightning.fabric import Fabric

from fl_lightning import Federation
from fl_lightning.distributed.malloc import keep_freed_memory
from fl_lightning.executors import ClientResult
from fl_lightning.federation.aggregation import RoundSums
from fl_lightning.federation.exact_sum import ExactSum

CLIENTS = 10


def tally_of(run: Federation) -> RoundSums:
    """An empty tally of a round."""
    return RoundSums(
        run.server.initial_w,
        run.local_training.template,
        run.buffers,
        CLIENTS,
        run.local_training.sum_type,
    )


def milliseconds(run: Federation) -> float:
    """To add one client's result to the sums."""
    tally, w = tally_of(run), run.server.initial_w
    result = ClientResult(w, run.local_training.template, [], run.buffers, w.new_zeros(()), w)
    seconds = []
    for _ in range(6):
        started = perf_counter()
        tally.add(result, 1.0, 0).item()
        seconds.append(perf_counter() - started)
    return 1e3 * median(seconds[1:])


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
    notes = {
        name: f"{tally_of(run).total.nbytes / 1e6:.1f} MB all-reduced, "
        f"{milliseconds(run):.2f} ms to add a client"
        for name, run in runs.items()
    }
    fabric.print(f"{options.model}, {options.ranks} rank(s)")
    fabric.print(table(seconds, CLIENTS * options.samples, notes))


if __name__ == "__main__":
    main()
