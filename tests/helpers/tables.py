"""Texts of small tables, and runs as if they had been trained."""

from typing import Any

from locations import ROOT
from run_folders import run

from fl_lightning.lab.sweep.plan import Job

DIGITS = ROOT / "recipes/digits.py"
SMALL = "rounds: 2\nclients: 4\nparticipation: 0.5\n"
METHODS = "methods: {fedavg: {}, fedsam: {rho: 0.2, lr: 0.05}}\n"


def options(jobs: list[Job], *names: str) -> list[tuple[object, ...]]:
    return [tuple(job.config.get(name) for name in names) for job in jobs]


def finished(job: Job, *accuracies: float | None, **scores: Any) -> None:
    """Make the folder of a run as if it had been trained."""
    run(job.folder, accuracies, job.config["seed"], **scores)
    (job.folder / "config.yaml").write_text(job.config.text())
