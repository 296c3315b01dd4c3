"""Loggers of a run's scalars: metrics.csv, and experiment trackers."""

import csv
from argparse import Namespace
from collections.abc import Collection, Iterable, Mapping
from importlib import import_module
from io import SEEK_END, StringIO
from pathlib import Path
from textwrap import shorten
from typing import Any

from lightning.fabric.loggers.logger import Logger
from lightning.fabric.utilities.rank_zero import rank_zero_only

from fl_lightning.distributed.launch_options import is_first_rank
from fl_lightning.errors import UserError
from fl_lightning.files import atomic, sync
from fl_lightning.runs.config import dump, load
from fl_lightning.runs.folder import lock_owner, program_name

Row = dict[str, str]
"""The scalars of a round as texts, by column."""


class MetricsCSV:
    """A logger of Fabric that writes `metrics.csv`.

    The first column is `round`, then there is one a tag, empty where it is missing.

    Each row is on disk before the next round begins. Rows of rounds that a resumed run repeats are
    dropped.

    Args:
        path: The file.
        after: The number of rounds whose rows are kept from the existing file.
        last_only: Tags that the last of these rows has because the run ended there. They and the
            scores of personal models are dropped when another round follows.

    Raises:
        UserError: If one of the kept rows is missing or damaged. The file stays as it is.
    """

    def __init__(self, path: Path, after: int = 0, last_only: Collection[str] = ()):
        self.path, self._last_only = path, last_only
        self._owner = lock_owner(path.parent)
        self._columns, rows = _saved(path, after) if after else (["round"], [])
        self._last = rows[-1] if rows else {}
        self._rewrite(rows)

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Append a row, or add to the last one if it is of the same round.

        Raises:
            UserError: If a callback has added a metric that is no number, or is named round; or if
                the folder was deleted and another run has begun in it.
        """
        if (owner := lock_owner(self.path.parent)) not in ("", self._owner):
            raise UserError(
                f"{self.path.parent} was deleted, and another run has begun in it ({owner}): "
                "this run ends, start it again with another --run-dir"
            )
        row = {"round": str(step)}
        for tag, value in metrics.items():
            if tag in row:
                raise UserError(f"metrics[{tag!r}] is already the number of the round: rename it")
            try:
                row[tag] = repr(float(value))
            except (TypeError, ValueError, RuntimeError):
                shown = shorten(repr(value), 80)
                raise UserError(f"metrics[{tag!r}] is not one number, but {shown}") from None
        ended = [t for t in self._last if t in self._last_only or t.startswith("personal/")]
        before, rows = list[Row](), [row]
        if self._last.get("round") == row["round"]:
            before, rows = [self._last], [self._last | row]
        elif ended:
            before, rows = [self._last], [self._last | dict.fromkeys(ended, ""), row]
            self._last_only = ()
        if new := [tag for tag in row if tag not in self._columns]:
            self._columns += new
            with self.path.open(newline="", encoding="utf-8") as file:
                self._rewrite(csv.DictReader(file))
        with self.path.open("r+b") as end:  # the rows before stay, however many they are
            end.seek(-len(self._text(before)), SEEK_END)
            end.write(self._text(rows))
            end.truncate()
        self._last = rows[-1]

    @rank_zero_only
    def save(self) -> None:
        """Flush the table to disk, before a checkpoint that comes after its rows."""
        sync(self.path)

    def finalize(self, status: str) -> None:
        """Do nothing: no file is open."""

    @rank_zero_only
    def _rewrite(self, rows: Iterable[Row]) -> None:
        with atomic(self.path, "w") as file:
            writer = csv.DictWriter(file, self._columns)
            writer.writeheader()
            writer.writerows(rows)

    def _text(self, rows: Iterable[Row]) -> bytes:
        text = StringIO(newline="")
        csv.DictWriter(text, self._columns).writerows(rows)
        return text.getvalue().encode()


def _saved(path: Path, rounds: int) -> tuple[list[str], list[Row]]:
    """The columns, and the rows of the first rounds, which were on disk before their checkpoint."""
    rows, number = list[Row](), 1
    try:
        with path.open(newline="", encoding="utf-8", errors="replace") as file:
            reader = csv.DictReader(file)
            for number in range(1, rounds + 1):
                row = next(reader)
                if row["round"] != str(number):
                    raise ValueError
                [float(value) for value in row.values() if value != ""]  # or a ValueError
                rows.append(row)
            return list(reader.fieldnames or ()), rows
    except (FileNotFoundError, StopIteration, KeyError, ValueError, TypeError, csv.Error):
        raise UserError(
            f"{path} lacks round {number} of {rounds} that are saved, or is damaged there: restore "
            "it, or delete the folder to run it again"
        ) from None


def start_trackers(
    names: Collection[str], folder: Path, options: Mapping[str, Any]
) -> list[Logger]:
    """Start the trackers on the first rank; a resumed run continues its runs there.

    They are configured by their own environment variables, such as `WANDB_MODE` and
    `MLFLOW_TRACKING_URI`. The project, which MLflow calls an experiment, is named after the recipe.
    `trackers.yaml` in the run's folder keeps the trackers' names of the run.

    Raises:
        UserError: If one does not start, as without an account.
    """
    if not names or not is_first_rank():
        return []
    file = folder / "trackers.yaml"
    ids = load(file.read_text()) if file.is_file() else {}
    project, loggers = program_name(), list[Logger]()
    for name in names:
        try:
            logger = MAKERS[name](project, folder, ids.get(name))
            if name not in ids or name != "mlflow":  # there a resumed run cannot change an option
                logger.log_hyperparams(dict(options))
            ids[name] = str(logger.version)
        except Exception as error:
            reason = " ".join(str(error).split())
            raise UserError(
                f"{name} does not start ({reason}): set it up, or leave out --logger {name}"
            ) from error
        loggers.append(logger)
    file.write_text(dump(ids))
    return loggers


class TrackioLogger(Logger):
    """Fabric's logger interface for trackio, which has none of its own."""

    def __init__(self, project: str, folder: Path, run: str | None):
        self._project, self._name = project, run or folder.name
        how = "never" if run is None else "allow"
        self._run = import_module("trackio").init(project, self._name, resume=how, embed=False)

    @property
    def name(self) -> str:
        """The project."""
        return self._project

    @property
    def version(self) -> str:
        """The name of the run."""
        return self._name

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Log the scalars of a round."""
        self._run.log(dict(metrics), step)

    def log_hyperparams(
        self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any
    ) -> None:
        """Set the options of the run."""
        self._run.config |= dict(params)

    def finalize(self, status: str) -> None:
        """Write what has been logged."""
        import_module("trackio").finish()


def _wandb(project: str, folder: Path, run: str | None) -> Logger:
    from lightning.pytorch.loggers import WandbLogger

    class Finishing(WandbLogger):
        """Ends the run with the experiment, since a process may train several."""

        def finalize(self, status: str) -> None:
            self.experiment.finish(int(status != "success"))

    # or Lightning takes the run that another fit of this process has begun
    return Finishing(folder.name, folder, project=project, id=run, reinit="create_new")


def _mlflow(project: str, folder: Path, run: str | None) -> Logger:
    from lightning.pytorch.loggers import MLFlowLogger

    uri = import_module("mlflow").get_tracking_uri()  # also MLflow's own default
    return MLFlowLogger(project, folder.name, tracking_uri=uri, run_id=run)


MAKERS = {"wandb": _wandb, "mlflow": _mlflow, "trackio": TrackioLogger}
