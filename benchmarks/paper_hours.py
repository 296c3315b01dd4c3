"""Write docs/paper_hours.csv: what the local training of each paper's table takes on one core.

    OMP_NUM_THREADS=1 python benchmarks/paper_hours.py

The number of gradients follows from the options of each run and the size of its data set. A
gradient is timed as that of a plain PyTorch model on a batch of random images, the shortest of ten
times. Not counted: batches, steps, evaluations, fine-tuning.
"""

import sys
import time
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from pandas import DataFrame
from torch.nn import functional as F

from fl_lightning.algorithms.registry import ALGORITHMS
from fl_lightning.cli.algorithms import costs_in_models
from fl_lightning.cli.choices import MODELS
from fl_lightning.cli.recipes import recipes
from fl_lightning.lab.sweep.plan import plan
from fl_lightning.runs.config import Config

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


def options_of(kind: str, config: Config) -> dict[str, Any]:
    """The options of what a run has chosen for a kind, such as its model."""
    names = [name for name in config if name.startswith(f"{kind}.")]
    return {name.partition(".")[2]: config[name] for name in names}


def seconds(config: Config) -> float:
    """The time of a gradient on a batch."""
    _, channels, size, classes = DATA[config["data"]]
    given = {"channels": channels, "size": size, "classes": classes, "inputs": channels * size**2}
    given |= options_of("model", config)
    make = MODELS[config["model"]]
    network = make(**{k: value for k, value in given.items() if k in signature(make).parameters})
    batch = config["batch_size"]
    x, y = torch.randn(batch, channels, size, size), torch.randint(classes, (batch,))
    least = float("inf")
    for _ in range(10):
        began = time.perf_counter()
        F.cross_entropy(network(x), y).backward()
        least = min(least, time.perf_counter() - began)
    return least


def gradients(config: Config) -> int:
    """The gradients of a run's local training."""
    samples, *_ = DATA[config["data"]]
    of_epoch = -(-samples // config["clients"] // config["batch_size"])
    steps = config["local_steps"] or round(config["local_epochs"] * of_epoch)
    visits = config["rounds"] * max(1, round(config["participation"] * config["clients"]))
    algorithm = ALGORITHMS[config["algorithm"]](**options_of("algorithm", config))
    return visits * steps * costs_in_models(algorithm)[1]


def main() -> None:
    """Count, measure, write."""
    sys.path.insert(0, str(DOCS))
    from paper_pages import PAPERS, tables

    rows, times = [], dict[str, float]()
    for table in (table for paper in PAPERS for table in tables(paper)):
        count, hours = 0, 0.0
        jobs = plan(table, recipes()[table.recipe], Path("runs"), [])
        for config in (job.config for job in jobs):
            model = [v for k, v in config.items() if k.partition(".")[0] in ("data", "model")]
            timed = str((*model, config["batch_size"]))
            times[timed] = times.get(timed) or seconds(config)
            count += (of_run := gradients(config))
            hours += of_run * times[timed] / 3600
        rows.append({"table": table.name, "runs": len(jobs), "gradients": count, "hours": hours})
        print(rows[-1], flush=True)
    DataFrame(rows).to_csv(DOCS / "paper_hours.csv", index=False, float_format="%.3g")


if __name__ == "__main__":
    main()
