"""Experiment trackers: Weights & Biases, MLflow and trackio get a run's scalars and options."""

from argparse import Namespace
from collections.abc import Collection, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from lightning.fabric.loggers.logger import Logger

from fl_lightning.distributed.launch_options import is_first_rank
from fl_lightning.errors import UserError
from fl_lightning.runs.config import dump, load
from fl_lightning.runs.folder import program_name


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
