"""A run: its configuration and the files in its folder."""

import csv
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from html import escape
from pathlib import Path
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from fl_lightning.core.network import check_base, digest, uncompiled
from fl_lightning.data import Partition, hold_out, hold_out_of_clients
from fl_lightning.data.dataset import TrainTest
from fl_lightning.errors import UserError, first_sentence
from fl_lightning.runs.chosen import Chosen, build_data, build_model, find_chosen
from fl_lightning.runs.config import Config, folders_of_runs, load
from fl_lightning.runs.scalars import Scalars, read_scalars

if TYPE_CHECKING:
    from pandas import DataFrame

TAIL_LENGTH = 10
"""Evaluations whose mean is reported, so that the last rounds' ups and downs cancel."""


@dataclass(frozen=True, eq=False, repr=False)
class Run:
    """A run: its configuration, and its folder with scalars, model, partition and checkpoints.

    Attributes:
        path: The folder.
        config: The options.
    """

    path: Path
    config: Config

    @staticmethod
    def read(path: Path | str, data_dir: Path | str | None = None) -> "Run":
        """Read the run in a folder.

        Args:
            path: The folder.
            data_dir: The folder of the data, if it is another one than when the run was trained.

        Raises:
            UserError: If the folder holds no run, or one of its files cannot be read.
        """
        path = Path(path)
        try:
            run = Run(path, Config.read(path))
            if run.ended and run.rounds < (last := run.ended["round"]):
                raise UserError(
                    f"metrics.csv ends with round {run.rounds} of {last}: restore it, or delete "
                    "the folder to run it again"
                )
        except (OSError, ValueError, AttributeError, TypeError, csv.Error) as error:
            reason = " ".join(str(error).split())
            raise UserError(f"{path} holds no run that can be read: {reason}") from None
        if data_dir is not None:
            run.config["data_dir"] = str(Path(data_dir).absolute())
        return run

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r}: {self.config['algorithm']}, round {self.rounds})"

    def _repr_html_(self) -> str:
        """What a notebook shows: the scores by round, else the loss; the first rounds left out."""
        tags = [tag for tag in self.scores if tag in self.metrics] or ["train/loss"]
        shown = self.metrics.filter(tags).tail()
        return f"<p>{escape(repr(self))}</p>{shown.to_html()}"

    @property
    def ended(self) -> Mapping[str, Any] | None:
        """The `round` and the `reason` with which the run has ended; None if it has not."""
        end = self.environment.get("ended")
        return end if isinstance(end, dict) else None

    @property
    def scores(self) -> Mapping[str, bool]:
        """The scores of the global model, and whether larger values are better; the first counts.

        A run that was scored on nothing names the accuracy.
        """
        return self.environment.get("scores") or {"test/accuracy": True}

    def larger_is_better(self, score: str) -> bool | None:
        """Whether larger values of a score are better, as recorded; None if it is not recorded.

        The scores of clients, such as `rmse`, `clients/rmse`, `own/rmse` or `own/rmse_worst10`,
        have the direction of the global model's score.
        """
        name = re.sub("^(clients|own)/|_worst10$", "", score)
        return self.scores.get(name, self.scores.get(f"test/{name}"))

    @cached_property
    def scalars(self) -> Scalars:
        """The columns of `metrics.csv`, without the rounds in which a tag was not recorded."""
        return read_scalars(self.path / "metrics.csv")

    @cached_property
    def metrics(self) -> "DataFrame":
        """The scalars as a data frame: one row a round, one column a tag."""
        from pandas import DataFrame  # here, because training does not need it

        return DataFrame(self.scalars, dtype=float).rename_axis("round").sort_index()

    @property
    def rounds(self) -> int:
        """The last round recorded."""
        return max((k for values in self.scalars.values() for k in values), default=0)

    def frame(self) -> "DataFrame":
        """The scalars with the options as further columns: one row a round.

        Lists among the options are tuples, which pandas can group by.
        """
        frame = self.metrics.reset_index()
        for place, (option, value) in enumerate({"run": str(self.path), **self.config}.items()):
            value = tuple(value) if isinstance(value, list) else value
            frame.insert(place, option, [value] * len(frame))
        return frame

    def data(self) -> TrainTest:
        """The training and the test set, from the source and the folder that the run used.

        The test set is without the validation part if the run held one out of it. A warning says
        that a set has changed since.

        Raises:
            UserError: If the source cannot be imported or run.
        """
        source = find_chosen("data", self.config, self.environment, self.path)
        root = Path(self.environment.get("directory", ""), self.config["data_dir"])
        options = tuple(source.options.items())
        train, test = _load_data(source.name, source.function, options, root)
        if fraction := self._validation_from("test"):
            test, _ = hold_out(test, fraction, self.config["seed"])
        if self.environment.get("data", digests := [train.digest, test.digest]) != digests:
            warnings.warn(f"the data of {self.path} have changed since it began", stacklevel=1)
        return train, test

    def model(
        self,
        module: nn.Module | None = None,
        *,
        best: bool = False,
        round: int | None = None,
        client: int | None = None,
    ) -> nn.Module:
        """The global model after the last round, or a client's own, in evaluation mode.

        Args:
            module: A module like the trained one, which gets the weights; by default one that the
                run's model function makes.
            best: That of the best evaluation instead, by the first metric, or the accuracy, of the
                validation part if there is one, else of the test set.
            round: That of this round instead, from its checkpoint.
            client: The own model of the client of this number after the last round, as the callback
                `personal_weights` has written it.

        Raises:
            UserError: If it has not been saved, or its factory cannot be imported.
        """
        asked = {
            "best.pt": best,
            f"checkpoints/round-{round}.ckpt": round is not None,
            f"personal/{client}.pt": client is not None,
        }
        files = [name for name, given in asked.items() if given] or ["model.pt"]
        if len(files) > 1:
            raise UserError(f"{' and '.join(files)} are different models: ask for one")
        file = self.path / files[0]
        if not file.is_file():
            raise UserError(
                f"{file} does not exist: model.pt comes after the last round, best.pt with the "
                "first evaluation, checkpoints stay as long as --keep-checkpoints says, and "
                "clients' own models are written by --callback personal_weights"
            )
        model, name = module, type(module).__name__
        if model is None:
            factory = find_chosen("model", self.config, self.environment, self.path)
            model = build_model(factory, self.data()[0], self.config["seed"])
            name = factory.name
        try:
            state = torch.load(file, map_location="cpu", weights_only=True)
            inner = uncompiled(model)
            getattr(inner, "configure_model", lambda: None)()  # makes parts of a LightningModule
            if client is not None:  # whose file lacks frozen weights
                state = uncompiled(self.model(model)).state_dict() | state
            inner.load_state_dict(state if round is None else _of_checkpoint(state, inner))
        except (RuntimeError, OSError, EOFError, UnpicklingError) as error:
            raise UserError(
                f"{file} does not fit the model {name} ({first_sentence(error)}): it is damaged, "
                "the model's code has changed, or the data have other sizes or classes"
            ) from error
        return model.eval()

    def partition(self) -> Partition:
        """The samples that each client trained on.

        Raises:
            UserError: If its file is missing or damaged.
        """
        file = next(self.path.glob("partition-*.npz"), None)
        if file is None:
            raise UserError(f"{self.path} has no partition-*.npz: restore it")
        partition = Partition.load(file)
        if fraction := self._validation_from("clients"):
            partition, _ = hold_out_of_clients(partition, fraction, self.config["seed"])
        return partition

    @cached_property
    def environment(self) -> Mapping[str, Any]:
        """The content of `environment.yaml`: the command, hardware, versions, and the end."""
        file = self.path / "environment.yaml"
        try:
            made = load(file.read_text()) if file.is_file() else {}
        except (OSError, ValueError) as error:
            reason = " ".join(str(error).split())
            raise UserError(f"{file} cannot be read ({reason}): restore it") from None
        return made if isinstance(made, dict) else {}

    def _validation_from(self, part: str) -> float | None:
        """The fraction that the run held out of this part for validation."""
        return self.config["validation"] if self.config["validation_from"] == part else None


@lru_cache(2)  # several runs on the same data
def _load_data(
    name: str, function: Callable[..., Any], options: tuple[tuple[str, Any], ...], root: Path
) -> TrainTest:
    return build_data(Chosen(name, function, dict(options)), root)


def _of_checkpoint(state: Mapping[str, Any], model: nn.Module) -> dict[str, Any]:
    """The `state_dict` of a model from the content of a checkpoint and the model's frozen base."""
    parameters = dict(model.named_parameters())
    theirs, frozen, buffers = (  # without the prefix of `torch.compile`
        {name.removeprefix("_orig_mod."): x for name, x in state[part].items()}
        for part in ("base", "frozen", "buffers")
    )
    base = {name: p for name, p in parameters.items() if name in theirs}
    check_base({name: digest(p) for name, p in base.items()}, theirs)
    frozen = {**base, **frozen}  # with FedBABU also the head
    trained = {name: p for name, p in parameters.items() if name not in frozen}
    parts = state["w"].split([p.numel() for p in trained.values()])
    named = zip(trained.items(), parts, strict=True)
    whole = {name: part.view_as(p) for (name, p), part in named} | frozen | buffers
    places = model.state_dict(keep_vars=True)
    # a tied weight has two names, and one in the checkpoint
    saved = {id(places[name]): tensor for name, tensor in whole.items() if name in places}
    return {name: saved[id(place)] for name, place in places.items() if id(place) in saved}


def saved_rounds(folder: Path) -> list[int]:
    """The rounds of a run's checkpoints, in order; files with other names are ignored."""
    files = (folder / "checkpoints").glob("round-*.ckpt")
    stems = [file.stem.removeprefix("round-") for file in files]
    return sorted(int(stem) for stem in stems if stem.isdecimal())


def load_runs(
    folders: Sequence[Path | str], warn: Callable[[str], object] = warnings.warn
) -> list[Run]:
    """Read the runs in these folders and in all folders under them, each once.

    Args:
        folders: Folders of runs, or folders that contain them.
        warn: Called with a message for each run that cannot be read; it is left out.

    Raises:
        UserError: If a folder contains no run, or none of the runs can be read.
    """
    paths = dict[Path, Path]()
    for folder in map(Path, folders):
        found = [path for path in folders_of_runs(folder) if (path / "metrics.csv").is_file()]
        if not found:
            raise UserError(f"no run in {folder}: name a run's folder, or one that contains runs")
        paths |= {path.resolve(): path for path in sorted(found, key=_natural)}
    runs, reasons = list[Run](), list[str]()
    for path in paths.values():
        try:
            runs.append(Run.read(path))
        except ValueError as error:
            reasons.append(str(error))
    if not runs:
        raise UserError(reasons[0] if reasons else "there are no folders of runs: name one")
    for reason in reasons:
        warn(f"{reason}; left out")
    return runs


def _natural(path: Path) -> list[str]:
    """Key of the order in which 9 comes before 10, and 0.03 before 0.1."""
    parts = re.split(r"(\d+(?:\.\d+)?)", str(path))
    return [f"{float(part):020.6f}" if part[:1].isdecimal() else part for part in parts]
