"""How far every method is from the recorded trajectories of the authors' code, in float64.

Run it:

    python benchmarks/golden.py
    python benchmarks/golden.py --golden path/to/folder --executor stacked
"""

import argparse
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
from lightning.fabric import Fabric
from rich.console import Console
from rich.table import Table

from fl_lightning.algorithms.registry import ALGORITHMS

TESTS = Path(__file__).resolve().parents[1] / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "helpers")]

from golden_families import set_up  # noqa: E402
from test_golden import EXECUTORS, federation  # noqa: E402


def method_of(path: Path) -> str:
    """The algorithm that a file's name speaks of: the longest one that fits."""
    family, *words = path.stem.split("-")
    if words[:2] == ["fedavg", "ri"]:
        return "fedinit"
    named = ["_".join(words[:length]) for length in range(len(words), 0, -1)]
    return next((name for name in [*named, family] if name in ALGORITHMS), path.stem)


def largest_error(path: Path, executor: str) -> float:
    """Over all rounds and weights of one file."""
    setup, data = set_up(path)
    fabric = Fabric(accelerator="cpu", devices=1)
    run = federation(fabric, setup, np.load(path.parent / "problem.npz"), data, executor)
    error = 0.0
    for theta in np.load(path)["theta"][1:]:
        run.train_round()
        error = max(error, float(np.abs(run.w.detach().numpy() - theta).max()))
    return error


def main() -> None:
    """Print a row for each method."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--golden", type=Path, default=TESTS / "golden", help="folder of recorded trajectories"
    )
    parser.add_argument("--executor", choices=list(EXECUTORS), default="sequential")
    options = parser.parse_args()
    errors: dict[str, dict[str, float]] = defaultdict(dict)
    for path in sorted(options.golden.glob("*.npz")):
        if path.stem != "problem":
            errors[method_of(path)][path.stem] = largest_error(path, options.executor)
    table = Table(
        "method", "files", "largest error", "in", title=f"{options.executor}, float64, 8 rounds"
    )
    for method, of_files in sorted(errors.items()):
        worst = max(of_files, key=lambda name: of_files[name])
        table.add_row(method, str(len(of_files)), f"{of_files[worst]:.1e}", worst)
    table.add_row("all", str(sum(map(len, errors.values()))), "", "")
    Console().print(table)


if __name__ == "__main__":
    main()
