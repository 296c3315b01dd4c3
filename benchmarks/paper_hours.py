"""Write docs/paper_hours.csv: what the local training of each paper's table takes on one core.

    OMP_NUM_THREADS=1 python benchmarks/paper_hours.py

The gradients of a table follow from its options and from the sizes of its data sets. Each takes as
long as that of a plain PyTorch model on a batch of random images, the shortest of several times.
What is beside gradients is not counted: batches, steps, evaluations, fine-tuning.
"""

import sys
import time
from functools import cache
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from pandas import DataFrame
from torch.nn import functional as F

from fl_lightning.algorithms.registry import ALGORITHMS
from fl_lightning.cli.choices import MODELS
from fl_lightning.cli.list_algorithms import costs_in_models
from fl_lightning.cli.recipes import recipes
from fl_lightning.lab.sweep.plan import plan

DOCS = Path(__file__).parents[1] / "docs"
DATA = {
    "cifar10": (50_000, 3, 32, 10),
    "cifar100": (50_000, 3, 32, 100),
    "cinic10": (90_000, 3, 32, 10),
    "emnist_letters_aj": (48_000, 1, 28, 10),
    "mnist": (60_000, 1, 28, 10),
    "pathmnist": (89_996, 3, 28, 9),
    "svhn": (73_257, 3, 32, 10),
    "tissuemnist": (165_466, 3, 28, 8),
}
"""Training samples, channels, size and classes."""


@cache
def seconds(model: str, options: frozenset[tuple[str, Any]], data: str, batch: int) -> float:
    """The time of a gradient on a batch."""
    _, channels, size, classes = DATA[data]
    given = {"channels": channels, "size": size, "classes": classes, "inputs": channels * size**2}
    given |= {name: [*value] if isinstance(value, tuple) else value for name, value in options}
    known = signature(MODELS[model]).parameters
    network = MODELS[model](**{name: value for name, value in given.items() if name in known})
    x, y = torch.randn(batch, channels, size, size), torch.randint(classes, (batch,))
    least = float("inf")
    for _ in range(10):
        began = time.perf_counter()
        F.cross_entropy(network(x), y).backward()
        least = min(least, time.perf_counter() - began)
    return least


@cache
def gradients_of(method: str) -> int:
    """The gradients of a local step."""
    return costs_in_models(ALGORITHMS[method]())[1]


def main() -> None:
    """Count, measure, write."""
    sys.path.insert(0, str(DOCS))
    from paper_pages import PAPERS, tables

    rows = []
    for table in (table for paper in PAPERS for table in tables(paper)):
        count, hours = 0, 0.0
        jobs = plan(table, recipes()[table.recipe], Path("runs"), [])
        for c in (job.config for job in jobs):
            samples, *_ = DATA[c["data"]]
            an_epoch = -(-samples // c["clients"] // c["batch_size"])
            steps = c["local_steps"] or round(c["local_epochs"] * an_epoch)
            visits = c["rounds"] * max(1, round(c["participation"] * c["clients"]))
            of_run = visits * steps * gradients_of(c["algorithm"])
            names = ((name.partition("."), value) for name, value in c.items())
            options = frozenset(
                (option, tuple(value) if isinstance(value, list) else value)
                for (kind, dot, option), value in names
                if kind == "model" and dot
            )
            count += of_run
            hours += of_run * seconds(c["model"], options, c["data"], c["batch_size"]) / 3600
        rows.append({"table": table.name, "runs": len(jobs), "gradients": count, "hours": hours})
        print(rows[-1], flush=True)
    DataFrame(rows).to_csv(DOCS / "paper_hours.csv", index=False, float_format="%.3g")


if __name__ == "__main__":
    main()
