"""How far every method is from the recorded trajectories of the authors' code, in float64.

Run it:

    python benchmarks/golden.py
    python benchmarks/golden.py --executor sequential stacked traced --families wmsam toga nsam
    python benchmarks/golden.py --golden path/to/folder

`traced` are programs of the real compiler, which takes seconds for each recording.
"""

import argparse
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
from lightning.fabric import Fabric
from rich.console import Console
from rich.table import Table

TESTS = Path(__file__).resolve().parents[1] / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "helpers")]

from golden_families import set_up  # noqa: E402
from test_golden import EXECUTORS, federation  # noqa: E402


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
    """Print a row for each method of each family, the first word of a file's name."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--golden", type=Path, default=TESTS / "golden", help="folder of recorded trajectories"
    )
    parser.add_argument(
        "--executor", nargs="+", choices=[*EXECUTORS], default=["sequential"], help="a column each"
    )
    parser.add_argument(
        "--families", nargs="*", help="first words of the files' names; all of them by default"
    )
    options = parser.parse_args()
    files = defaultdict[tuple[str, str], list[Path]](list)
    for path in sorted(options.golden.glob("*.npz")):
        family, *words = path.stem.split("-")
        if words and family in (options.families or [family]):
            files[family, words[0]].append(path)
    table = Table("family", "method", "recordings", *options.executor, title="largest error")
    for (family, method), paths in files.items():
        errors = [max(largest_error(path, e) for path in paths) for e in options.executor]
        table.add_row(family, method, str(len(paths)), *(f"{error:.1e}" for error in errors))
    table.add_row("all", "", str(sum(map(len, files.values()))))
    Console().print(table)


if __name__ == "__main__":
    main()
