"""Rounds of two commits in turn, in CPU time: whether a change costs speed.

    git worktree add ../before 1b5b789 && make -C ../before setup
    OMP_NUM_THREADS=1 python benchmarks/before_after.py ../before --turns 3

Rows are of programs that both commits have; each runs in its own environment. The least of the
turns are compared, and their medians: what others do on a machine only adds time.
"""

import argparse
import os
import re
import subprocess
from pathlib import Path
from statistics import median

HERE = Path(__file__).resolve().parents[1]

LOCAL = "local_steps.py --model {} --algorithm {} --only {} "
SMALL, LARGE = LOCAL + "--rounds 9", LOCAL + "--clients 2 --samples 200 --rounds 3"
BF16 = LOCAL + "--clients 1 --samples 100 --rounds 3 --precision bf16-mixed"
OURS = "ours.py --model {} --ranks 2 --way {} --rounds 3"
ROWS = {  # ways are of ways.py
    "mlp, FedAvg": SMALL.format("mlp", "fedavg", "sequential"),
    "mlp, FedTOGA": SMALL.format("mlp", "fedtoga", "sequential"),
    "mlp, FedAvg, stacked": SMALL.format("mlp", "fedavg", "stacked"),
    "LeNet, FedAvg": LARGE.format("lenet", "fedavg", "sequential"),
    "LeNet, FedTOGA": LARGE.format("lenet", "fedtoga", "sequential"),
    "LeNet, FedTOGA, stacked": LARGE.format("lenet", "fedtoga", "stacked"),
    "LeNet, FedAvg, compiled": LARGE.format("lenet", "fedavg", "sequential-compile"),
    "pfl's CNN, FedAvg": LARGE.format("pfl", "fedavg", "sequential"),
    "ResNet-18-GN, FedAvg": LARGE.format("resnet18_gn", "fedavg", "sequential"),
    "ResNet-18-GN, FedTOGA": LARGE.format("resnet18_gn", "fedtoga", "sequential"),
    "ResNet-18-GN, FedTOGA, bf16": BF16.format("resnet18_gn", "fedtoga", "sequential"),
    "pfl's benchmark, 2 ranks": OURS.format("pfl", "sequential"),
    "pfl's benchmark, 2 ranks, compiled": OURS.format("pfl", "sequential-compile"),
    "LeNet, 2 ranks": OURS.format("lenet", "sequential"),
    "LeNet, exact sums": "exact_sum.py --model lenet --samples 50",
}


def seconds(commit: Path, command: str) -> float:
    """CPU seconds a round, as the command says; of two ranks, of the first one."""
    ran = subprocess.run(
        [commit / ".venv/bin/python", "cpu_clock.py", *command.split()],
        cwd=commit / "benchmarks",
        env=os.environ | {"PYTHONPATH": str(commit)},
        capture_output=True,
        text=True,
    )
    said = r"(?:best is .*?, |CPU of this rank |^exact +)([\d.]+)"
    found = re.search(said, ran.stdout, re.MULTILINE)
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
        "| CPU seconds a round | least before | after | ratio | of medians, turn by turn |\n"
        "|---|---|---|---|---|"
    )
    for name, command in ROWS.items():
        if options.only not in name:
            continue
        turns = [
            (seconds(options.before.resolve(), command), seconds(HERE, command))
            for _ in range(options.turns)
        ]
        olds, news = zip(*turns, strict=True)
        least, middle = min(news) / min(olds), median(news) / median(olds)
        each = ", ".join(f"{new / old:.2f}" for old, new in turns)
        numbers = f"{min(olds):.4f} | {min(news):.4f} | **{least:.2f}** | {middle:.2f} ({each})"
        print(f"| {name} | {numbers} |", flush=True)


if __name__ == "__main__":
    main()
