"""The distance of every method to the least squares of a regression, whose optimum is known.

24 clients with 6 or 18 rows and lines of their own (tests/helpers/least_squares.py); every client
takes part in each of 50 rounds, with 3 steps on all its rows. Two optima are possible: that of
equal clients and to the one of all rows. All methods have their defaults.

    python benchmarks/known_optimum.py
"""

import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "helpers"))
from least_squares import distances

from fl_lightning import UserError
from fl_lightning.algorithms.registry import ALGORITHMS
from fl_lightning.errors import DivergenceError


def row(name: str) -> str:
    """A row of the table: both distances, or why there are none."""
    with TemporaryDirectory() as folder, redirect_stdout(StringIO()):
        try:
            found = distances(name, run_dir=Path(folder, "run"))
        except (UserError, DivergenceError) as error:
            return f"| {name} | {' '.join(str(error).split())} | |"
    return f"| {name} | {found['clients']:.1e} | {found['rows']:.1e} |"


if __name__ == "__main__":
    torch.set_num_threads(1)
    print("| method | distance to the optimum of equal clients | to the optimum of all rows |")
    print("|---|---|---|")
    for method in ALGORITHMS:
        print(row(method), flush=True)
