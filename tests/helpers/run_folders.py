"""Folders of runs that never ran, and what a comparison shows of them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fl_lightning.lab.report import Comparison, Table, compare, load_runs
from fl_lightning.runs.config import dump


def run(
    folder: Path,
    accuracies: Sequence[float | None],
    seed: int = 0,
    algorithm: str = "fedavg",
    alpha: float = 0.1,
    own: dict[str, Any] | None = None,
    score: str = "test/accuracy",
    seconds: str = "time/round_s",
    larger: bool | None = None,
    **options: Any,
) -> Path:
    """A run's folder as runs leave it; a round that was not evaluated has no accuracy.

    `score` and `seconds` name columns; the run says whether a larger score is better.
    """
    folder.mkdir(parents=True)
    config = {
        "algorithm": {"name": algorithm, **(own or {})},
        "partition": {"name": "dirichlet", "alpha": alpha},
    }
    base = {"rounds": len(accuracies), "seed": seed, "executor": "sequential", "lr": 0.1}
    config |= base | options
    (folder / "config.yaml").write_text(dump(config))
    if len(accuracies) >= config["rounds"]:
        ended = {"round": len(accuracies), "reason": "the last round"}
        said = {} if larger is None else {"scores": {score: larger}}
        (folder / "environment.yaml").write_text(dump({"ended": ended, **said}))
    lines = [f"round,{score},comm/uplink_mb,comm/downlink_mb,{seconds}"]
    lines += [f"{k},{'' if a is None else a},1.0,2.0,0.5" for k, a in enumerate(accuracies, 1)]
    (folder / "metrics.csv").write_text("\n".join(lines) + "\n")
    return folder


def compared(folder: Path, *columns: str, **labels: str) -> Comparison:
    return compare(load_runs([folder]), columns=columns, labels=labels)


def cells(comparison: Comparison, *scores: str, **options: Any) -> list[dict[str, str]]:
    return comparison.table(scores or ["last"], **options).text.to_dict("records")


def marked(table: Table, mark: str) -> dict[str, list[str]]:
    return {heading: [*table.marks.index[table.marks[heading] == mark]] for heading in table.marks}
