"""Write docs/digits.csv and digits_own.csv: accuracies on the digits, for the methods' pages.

    python recipes/digits.py --algorithm scaffold --run-dir runs/every_method/scaffold
    python recipes/digits.py --algorithm local_adamw --lr 0.001 --run-dir runs/every_method/adamw
    python recipes/digits.py --algorithm ditto --callback personal_scores:every=1
    python benchmarks/digits_curves.py runs/every_method runs/digits

Several folders may be given. Of methods whose clients keep models of their own the accuracy of
these is taken, from runs with `personal_scores`, and FedAvg's beside it. Left out are optimizers of
clients at SGD's learning rate. A file that no run is for stays as it is.
"""

import re
import sys
from pathlib import Path
from typing import Any

from pandas import concat

from fl_lightning.algorithms import personal
from fl_lightning.algorithms.registry import ALGORITHMS, functions
from fl_lightning.lab.report import load_runs

DOCS = Path(__file__).parents[1] / "docs"
SGD_RATE = 0.1
"""The recipe's learning rate."""

DEFAULTS = ",epochs=0|,lr=none"
"""Options of `personal_scores` that need not be given."""


def main() -> None:
    """Write the accuracies of the runs in the folders, one column a method."""
    files: dict[str, dict[str, Any]] = {"digits.csv": {}, "digits_own.csv": {}}
    for run in load_runs(map(Path, sys.argv[1:])):
        name, lr = run.config["algorithm"], run.config["lr"]
        own_optimizer = ALGORITHMS[name]().sgd_options == ("lr",)
        own = " ".join(c for c in run.config["callback"] or () if c.startswith("personal_scores"))
        if (name in functions(personal) and not own) or own_optimizer == (lr == SGD_RATE):
            continue
        options = f" --lr {lr:g}" if own_optimizer else ""
        options += " --sampling bernoulli" if run.config["sampling"] == "bernoulli" else ""
        options += f" --callback {re.sub(DEFAULTS, '', own)}" if own else ""
        curve = run.metrics["own/accuracy" if own else "test/accuracy"].dropna().round(4)
        if len(curve) == run.config["rounds"]:
            files["digits_own.csv" if own else "digits.csv"][name] = curve.rename(name + options)
    for file, columns in files.items():
        if columns:
            curves = concat([columns[name] for name in ALGORITHMS if name in columns], axis=1)
            curves.to_csv(DOCS / file, index_label="round")


if __name__ == "__main__":
    main()
