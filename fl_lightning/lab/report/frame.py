"""Runs as a pandas data frame."""

from collections.abc import Iterable
from pathlib import Path

from pandas import DataFrame, concat

from fl_lightning.algorithms.modifiers import method_name
from fl_lightning.runs.run import load_runs


def load(folders: str | Path | Iterable[str | Path]) -> DataFrame:
    """Load runs as a data frame with a row for each round of each run.

    The columns are `run` (its folder), `method` (such as `scaffold+lesam`), every option under its
    name in `config.yaml` (`batch_size`, `partition.alpha`, ...), `round`, and every recorded tag.
    What a run does not have is missing (NaN). A run that cannot be read is left out with a warning.

    Args:
        folders: Folders of runs, or folders that contain them.

    Raises:
        UserError: If a folder contains no run, or none of the runs can be read.

    Example::

        from fl_lightning.lab import report

        runs = report.load("runs/digits")
        means = runs.pivot_table("test/accuracy", index="round", columns="method")  # over seeds
        means.plot().figure.savefig("curves.png")
    """
    runs = load_runs([Path(folders)] if isinstance(folders, str | Path) else [*map(Path, folders)])
    frame = concat([run.frame() for run in runs], ignore_index=True)
    methods = {str(run.path): method_name(run.config) for run in runs}
    frame.insert(1, "method", frame["run"].map(methods))
    return frame
