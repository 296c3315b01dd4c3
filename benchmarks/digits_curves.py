"""Write docs/digits.csv: the methods' test accuracies on the digits, for the pages of the methods.

    fl-lightning table benchmarks/digits.yaml --runs runs/every_method
    python benchmarks/digits_curves.py runs/every_method

Left out are methods whose clients keep models of their own, since the global model's accuracy says
little of them, and those of optimizers at the learning rate of SGD.
"""

import sys
from pathlib import Path

from pandas import DataFrame

from fl_lightning.algorithms import personal
from fl_lightning.algorithms.registry import ALGORITHMS, functions
from fl_lightning.lab.report import load_runs

FILE = Path(__file__).parents[1] / "docs" / "digits.csv"
SGD_RATE = 0.1


def main() -> None:
    """Write the accuracies of the runs in a folder, one column a method."""
    columns = {}
    for run in load_runs([Path(sys.argv[1])]):
        name = run.config["algorithm"]
        own_optimizer = ALGORITHMS[name]().sgd_options == ("lr",)
        if name in functions(personal) or (own_optimizer and run.config["lr"] == SGD_RATE):
            continue
        columns[name] = run.metrics["test/accuracy"].dropna().round(4)
    curves = DataFrame({name: columns[name] for name in ALGORITHMS if name in columns})
    curves.to_csv(FILE, index_label="round")


if __name__ == "__main__":
    main()
