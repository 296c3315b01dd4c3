"""A run, read from its folder."""

import csv
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from fl_lightning.data import Partition, hold_out, hold_out_of_clients
from fl_lightning.data.dataset import TrainTest
from fl_lightning.errors import first_sentence
from fl_lightning.runs.chosen import Chosen, build_data, build_model, find_chosen
from fl_lightning.runs.config_yaml import flat, load

if TYPE_CHECKING:
    from pandas import DataFrame

TAIL_LENGTH = 10
"""Evaluations whose mean is reported, so that the last rounds' ups and downs cancel."""

Scalars = Mapping[str, Mapping[int, float]]
"""Numbers by tag, as TensorBoard shows it, then by round."""


def higher_is_better(tag: str) -> bool:
    """Whether larger values of a scalar are better: accuracies, also of classes and of clients."""
    of_clients = "test/clients", "test/clients_worst10", "test/local"
    return "accuracy" in tag or tag.startswith("test/class_") or tag in of_clients


@dataclass(frozen=True, eq=False)
class Run:
    """The options of a run and its scalars so far.

    Attributes:
        path: The folder.
        options: By their names in `config.yaml`, such as `algorithm`, `batch_size`,
            `partition.alpha`; `algorithm.file` is a digest of the user-defined files of the run.
        scalars: The columns of `metrics.csv`, without the rounds in which a tag was not recorded.
    """

    path: Path
    options: Mapping[str, Any]
    scalars: Scalars

    @staticmethod
    def read(path: Path | str, data_dir: Path | str | None = None) -> "Run":
        """Read the run in a folder.

        Args:
            path: The folder.
            data_dir: The folder of the data, if it is another one than when the run was trained.

        Raises:
            ValueError: If the folder holds no run, or one of its files cannot be read.
        """
        path = Path(path)
        try:
            options = read_options(path)
            if data_dir is not None:
                options["data_dir"] = str(Path(data_dir).absolute())
            return Run(path, options, scalars(path / "metrics.csv"))
        except (OSError, ValueError, AttributeError, TypeError, csv.Error) as error:
            reason = " ".join(str(error).split())
            raise ValueError(f"{path} holds no run that can be read: {reason}") from None

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
        for place, (option, value) in enumerate({"run": str(self.path), **self.options}.items()):
            value = tuple(value) if isinstance(value, list) else value
            frame.insert(place, option, [value] * len(frame))
        return frame

    def data(self) -> TrainTest:
        """The training and the test set, from the source and the folder that the run used.

        The test set is without the validation part if the run held one out of it.

        Raises:
            ValueError: If the source cannot be imported or run.
        """
        source = find_chosen("data", self.options, self._environment, self.path)
        root = Path(self._environment.get("directory", ""), self.options.get("data_dir") or "")
        options = tuple(source.options.items())
        train, test = _load_data(source.name, source.function, options, root)
        if fraction := self._validation_from("test"):
            test, _ = hold_out(test, fraction, self.options["seed"])
        return train, test

    def model(self, best: bool = False, round: int | None = None) -> nn.Module:
        """The global model after the last round, in evaluation mode.

        Args:
            best: That of the best evaluation instead: the best validation accuracy if there is a
                validation part, else the best test accuracy.
            round: That of this round instead, from its checkpoint.

        Raises:
            ValueError: If it has not been saved, or its factory cannot be imported.
        """
        file = self.path / ("best.pt" if best else "model.pt")
        if round is not None:
            file = self.path / "checkpoints" / f"round-{round}.ckpt"
        if not file.is_file():
            raise ValueError(
                f"{file} does not exist: model.pt is written after the last round, best.pt with "
                "the first evaluation, and --keep-checkpoints says how many checkpoints stay"
            )
        factory = find_chosen("model", self.options, self._environment, self.path)
        model = build_model(factory, self.data()[0], self.options["seed"])
        try:
            state = torch.load(file, map_location="cpu", weights_only=True)
            if round is not None:
                frozen = state["frozen"]  # with FedBABU also the head
                trained = {n: p for n, p in model.named_parameters() if n not in frozen}
                parts = state["w"].split([p.numel() for p in trained.values()])
                named = zip(trained.items(), parts, strict=True)
                whole = {name: part.view_as(p) for (name, p), part in named}
                whole |= {**frozen, **state["buffers"]}
                state = {name: whole[name] for name in model.state_dict() if name in whole}
            model.load_state_dict(state)
        except RuntimeError as error:
            raise ValueError(
                f"{file} does not fit the model {factory.name} ({first_sentence(error)}): "
                "its code has changed since"
            ) from error
        return model.eval()

    def partition(self) -> Partition:
        """The samples that each client trained on.

        Raises:
            ValueError: If its file is missing or damaged.
        """
        file = next(self.path.glob("partition-*.npz"), None)
        if file is None:
            raise ValueError(f"{self.path} has no partition-*.npz: restore it")
        partition = Partition.load(file)
        if fraction := self._validation_from("clients"):
            partition, _ = hold_out_of_clients(partition, fraction, self.options["seed"])
        return partition

    def _validation_from(self, part: str) -> float | None:
        """The fraction that the run held out of this part for validation."""
        from_part = self.options.get("validation_from") == part
        return self.options.get("validation") if from_part else None

    @cached_property
    def _environment(self) -> Mapping[str, Any]:
        file = self.path / "environment.yaml"
        try:
            made = load(file.read_text()) if file.is_file() else {}
        except (OSError, ValueError) as error:
            reason = " ".join(str(error).split())
            raise ValueError(f"{file} cannot be read ({reason}): restore it") from None
        return made if isinstance(made, dict) else {}


@lru_cache(2)  # several runs on the same data
def _load_data(
    name: str, function: Callable[..., Any], options: tuple[tuple[str, Any], ...], root: Path
) -> TrainTest:
    return build_data(Chosen(name, function, dict(options)), root)


def read_options(path: Path) -> dict[str, Any]:
    """Read the options of the run in a folder.

    Raises:
        OSError, ValueError, AttributeError, TypeError: If the file is damaged.
    """
    options = flat(load((path / "config.yaml").read_text()))
    if missing := [o for o in ("algorithm", "rounds", "seed") if o not in options]:
        raise ValueError(f"config.yaml lacks {', '.join(missing)}")
    own = b"".join(file.read_bytes() for file in sorted(path.glob("own/*")))
    return options | ({"algorithm.file": sha256(own).hexdigest()[:8]} if own else {})


def scalars(path: Path) -> Scalars:
    """Read `metrics.csv`; a last line that is still being written does not count.

    Raises:
        ValueError: If the file is no such table.
    """
    with path.open(newline="") as file:
        reader = csv.DictReader(file)
        columns = list(reader.fieldnames or [])
        if "round" not in columns:
            raise ValueError(f"{path.name} has no column round")
        rows = [row for row in reader if None not in row.values()]
    return {
        tag: {int(row["round"]): float(row[tag]) for row in rows if row[tag]}
        for tag in columns
        if tag != "round"
    }


def load_runs(
    folders: Sequence[Path | str], warn: Callable[[str], object] = warnings.warn
) -> list[Run]:
    """Read the runs in these folders and in all folders under them, each once.

    Args:
        folders: Folders of runs, or folders that contain them.
        warn: Called with a message for each run that cannot be read; it is left out.

    Raises:
        ValueError: If a folder contains no run, or none of the runs can be read.
    """
    paths, reason = dict[Path, Path](), "there are no folders of runs: name one at least"
    for folder in map(Path, folders):
        found = [file.parent for file in folder.rglob("metrics.csv")]
        found = sorted((p for p in found if (p / "config.yaml").is_file()), key=_natural)
        if not found:
            raise ValueError(f"no run in {folder}: name a run's folder, or one that contains runs")
        paths |= {path.resolve(): path for path in found}
    runs = []
    for path in paths.values():
        try:
            runs.append(Run.read(path))
        except ValueError as error:
            reason = str(error)
            warn(f"{reason}; left out")
    if not runs:
        raise ValueError(reason)
    return runs


def _natural(path: Path) -> list[str]:
    """Key of the order in which 9 comes before 10, and 0.03 before 0.1."""
    parts = re.split(r"(\d+(?:\.\d+)?)", str(path))
    return [f"{float(part):020.6f}" if part[:1].isdecimal() else part for part in parts]
