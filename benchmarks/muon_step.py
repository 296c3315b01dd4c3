"""A Muon step of a client beside the Newton-Schulz iterations in it, and beside a step of SGD.

    OMP_NUM_THREADS=1 python benchmarks/muon_step.py --model lenet --turns 10

CPU seconds of one thread; the three take turns. A step is a round's share of everything: forward,
backward, terms, optimizer, server.
"""

import argparse
import time
from collections.abc import Callable
from statistics import median

import torch
from contest import MODELS, federation, where
from lightning.fabric import Fabric
from torch import Tensor

from fl_lightning.terms.matrix import newton_schulz

STEPS, BATCH = 10, 50


def cpu_seconds(function: Callable[[], object]) -> float:
    """What one call takes of the processor."""
    began = time.process_time()
    function()
    return time.process_time() - began


def iterate(matrices: list[Tensor]) -> None:
    """Newton-Schulz on every matrix, as in so many steps."""
    for _ in range(STEPS):
        for matrix in matrices:
            newton_schulz(matrix)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", choices=MODELS, default="lenet")
    parser.add_argument("--turns", type=int, default=10)
    options = parser.parse_args()
    fabric = Fabric(accelerator="cpu", devices=1)
    muon, sgd = (
        federation(fabric, options.model, name, clients=1, samples=STEPS * BATCH, batch=BATCH)
        for name in ("local_muon", "fedavg")
    )
    shapes = [shape for shape in muon.layout.shapes if len(shape) > 1]
    matrices = [torch.randn(shape) for shape in shapes]
    parts = {
        "Muon": muon.train_round,
        "SGD": sgd.train_round,
        "Newton-Schulz": lambda: iterate(matrices),
    }
    for function in parts.values():
        function()
    seconds = [{name: cpu_seconds(f) for name, f in parts.items()} for _ in range(options.turns)]
    print(where())
    for name in parts:
        print(f"{name:14}{1e3 * median(turn[name] for turn in seconds) / STEPS:8.2f} ms a step")
    whole = median(turn["Muon"] / turn["Newton-Schulz"] for turn in seconds)
    added = median((turn["Muon"] - turn["SGD"]) / turn["Newton-Schulz"] for turn in seconds)
    print(f"a Muon step / its Newton-Schulz: {whole:.2f}; what it adds to SGD's: {added:.2f}")


if __name__ == "__main__":
    main()
