"""Write docs/digits.csv: the methods' test accuracies on the digits, for the pages of the methods.

    python recipes/digits.py --algorithm scaffold --run-dir runs/every_method/scaffold
    python recipes/digits.py --algorithm local_adamw --lr 0.001 --run-dir runs/every_method/adamw
    python benchmarks/digits_curves.py runs/every_method

Several folders may be given. Left out are methods whose clients keep models of their own, since the
global model's accuracy says little of them, and optimizers of clients at SGD's learning rate.
"""

import sys
from pathlib import Path

from pandas import concat

from fl_lightning.algorithms import personal
from fl_lightning.algorithms.registry import ALGORITHMS, functions
from fl_lightning.lab.report import load_runs

FILE = Path(__file__).parents[1] / "docs" / "digits.csv"
SGD_RATE = 0.1
"""The recipe's learning rate."""


def main() -> None:
    """Write the accuracies of the runs in a folder, one column a method."""
    columns = {}
    for run in load_runs(map(Path, sys.argv[1:])):
        name, lr = run.config["algorithm"], run.config["lr"]
        own_optimizer = ALGORITHMS[name]().sgd_options == ("lr",)
        if name in functions(personal) or own_optimizer == (lr == SGD_RATE):
            continue
        options = f" --lr {lr:g}" if own_optimizer else ""
        options += " --sampling bernoulli" if run.config["sampling"] == "bernoulli" else ""
        curve = run.metrics["test/accuracy"].dropna().round(4)
        if len(curve) == run.config["rounds"]:
            columns[name] = curve.rename(name + options)
    curves = concat([columns[name] for name in ALGORITHMS if name in columns], axis=1)
    curves.to_csv(FILE, index_label="round")


if __name__ == "__main__":
    main()
