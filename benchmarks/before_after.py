"""Rounds of two commits in turn, in CPU time: whether a change costs speed.

    git worktree add ../before 1b5b789 && make -C ../before setup
    OMP_NUM_THREADS=1 python benchmarks/before_after.py ../before --turns 3

Rows are of `local_steps.py`, which both commits have; each runs in its own environment. Medians of
the turns are compared.
"""

import argparse
import os
import re
import subprocess
from pathlib import Path
from statistics import median

HERE = Path(__file__).resolve().parents[1]

SMALL, LARGE = "--rounds 9", "--clients 2 --samples 200 --rounds 3"
BF16 = "--clients 1 --samples 100 --rounds 3 --precision bf16-mixed"
ROWS = {  # model, algorithm, way of ways.py, sizes
    "mlp, FedAvg": ("mlp", "fedavg", "sequential", SMALL),
    "mlp, FedTOGA": ("mlp", "fedtoga", "sequential", SMALL),
    "mlp, FedAvg, stacked": ("mlp", "fedavg", "stacked", SMALL),
    "LeNet, FedAvg": ("lenet", "fedavg", "sequential", LARGE),
    "LeNet, FedTOGA": ("lenet", "fedtoga", "sequential", LARGE),
    "LeNet, FedTOGA, stacked": ("lenet", "fedtoga", "stacked", LARGE),
    "LeNet, FedAvg, compiled": ("lenet", "fedavg", "sequential-compile", LARGE),
    "pfl's CNN, FedAvg": ("pfl", "fedavg", "sequential", LARGE),
    "ResNet-18-GN, FedAvg": ("resnet18_gn", "fedavg", "sequential", LARGE),
    "ResNet-18-GN, FedTOGA": ("resnet18_gn", "fedtoga", "sequential", LARGE),
    "ResNet-18-GN, FedTOGA, bf16": ("resnet18_gn", "fedtoga", "sequential", BF16),
}


def seconds(commit: Path, model: str, algorithm: str, way: str, sizes: str) -> float:
    """CPU seconds a round, as the last line says."""
    command = f"local_steps.py --model {model} --algorithm {algorithm} --only {way} {sizes}"
    ran = subprocess.run(
        [commit / ".venv/bin/python", "cpu_clock.py", *command.split()],
        cwd=commit / "benchmarks",
        env=os.environ | {"PYTHONPATH": str(commit)},
        capture_output=True,
        text=True,
    )
    found = re.search(r"best is .*?, ([\d.]+) s a round", ran.stdout)
    if not found:
        raise SystemExit(f"{commit.name}: {command} printed no time:\n{ran.stdout}{ran.stderr}")
    return float(found[1])


def main() -> None:
    """Measure row by row and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("before", type=Path, help="a checkout of the older commit")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--only", default="", help="rows whose names contain this")
    options = parser.parse_args()
    print(
        "| CPU seconds a round | before | after | after / before, turn by turn |\n|---|---|---|---|"
    )
    for name, row in ROWS.items():
        if options.only not in name:
            continue
        turns = [
            (seconds(options.before.resolve(), *row), seconds(HERE, *row))
            for _ in range(options.turns)
        ]
        before, after = map(median, zip(*turns, strict=True))
        each = ", ".join(f"{new / old:.2f}" for old, new in turns)
        print(
            f"| {name} | {before:.4f} | {after:.4f} | **{after / before:.2f}** ({each}) |",
            flush=True,
        )


if __name__ == "__main__":
    main()
