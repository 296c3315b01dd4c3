"""A run, read back from its folder."""

import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import yaml

from fl_lightning.runs.config_yaml import flat

Scalars = Mapping[str, Mapping[int, float]]
"""Numbers by tag, as TensorBoard shows it, then by round."""


@dataclass(frozen=True)
class Run:
    """What a run was told to do, and what came of it so far.

    Attributes:
        path: Its folder.
        options: By their names on the command line, such as `algorithm`, `algorithm.rho`,
            `partition.alpha`; and as `algorithm.file` a digest of files of the user's that it is
            made of.
        scalars: The columns of `metrics.csv`; a round in which a tag was not recorded is missing
            under it.
    """

    path: Path
    options: Mapping[str, Any]
    scalars: Scalars

    @staticmethod
    def read(path: Path) -> "Run":
        """The run in a folder.

        Raises:
            ValueError: If there is none, or a file of it cannot be read.
        """
        try:
            options = flat(yaml.safe_load((path / "config.yaml").read_text()))
            own = b"".join(file.read_bytes() for file in sorted(path.glob("own/*")))
            options |= {"algorithm.file": sha256(own).hexdigest()[:8]} if own else {}
            return Run(path, options, scalars(path / "metrics.csv"))
        except (OSError, ValueError, AttributeError, TypeError, yaml.YAMLError) as error:
            raise ValueError(
                f"{path} holds no run that can be read: {' '.join(str(error).split())}"
            ) from None

    @property
    def rounds(self) -> int:
        """Rounds that it has recorded."""
        return max((k for values in self.scalars.values() for k in values), default=0)

    def agrees_with(self, other: "Run") -> bool:
        """Whether both have the same test accuracies in the rounds that both have recorded."""
        mine, theirs = (run.scalars.get("test/accuracy", {}) for run in (self, other))
        return all(mine[k] == theirs[k] for k in mine.keys() & theirs.keys())


def scalars(path: Path) -> Scalars:
    """What `metrics.csv` holds; a last line that is still being written does not count.

    Raises:
        ValueError: If it is no such table.
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


def found(paths: Sequence[Path]) -> list[Run]:
    """The runs in these folders and all that lie under them, each once.

    Raises:
        ValueError: If a folder holds none, or one that cannot be read.
    """
    folders = dict[Path, Path]()
    for path in paths:
        here = [
            file.parent
            for file in path.rglob("metrics.csv")
            if (file.parent / "config.yaml").is_file()
        ]
        here.sort(
            key=lambda folder: [
                part.zfill(9) if part.isdigit() else part
                for part in re.split(r"(\d+)", str(folder))
            ]
        )
        if not here:
            raise ValueError(
                f"there is no run in {path}: name the folder of a run, or one under which runs lie"
            )
        folders |= {folder.resolve(): folder for folder in here}
    return [Run.read(folder) for folder in folders.values()]


TAIL_LENGTH = 10
"""BatchOracle in whose mean the last rounds' ups and downs cancel."""
