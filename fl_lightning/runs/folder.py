"""The folder in which everything of a run lies."""

import platform
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from itertools import count
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
import yaml
from lightning.fabric import Fabric
from lightning.fabric.utilities.rank_zero import rank_zero_only

from fl_lightning.distributed.launcher_env import is_first_rank
from fl_lightning.runs.lock import RunLock
from fl_lightning.runs.resume import check_changes
from fl_lightning.runs.run import TAIL_LENGTH, Scalars, scalars


@dataclass(frozen=True)
class RunFolder:
    """Where a run's files lie.

    Attributes:
        path: The folder.
    """

    path: Path

    @property
    def config(self) -> Path:
        """The resolved options; `--config` reads it."""
        return self.path / "config.yaml"

    @property
    def environment(self) -> Path:
        """What the run is made with."""
        return self.path / "environment.yaml"

    @property
    def metrics(self) -> Path:
        """The scalars, one row a round."""
        return self.path / "metrics.csv"

    @property
    def clients(self) -> Path:
        """What clients keep between rounds."""
        return self.path / "clients"

    @staticmethod
    @contextmanager
    def open(
        path: Path | None, algorithm: str, options: Mapping[str, Any], resume: bool
    ) -> Iterator["RunFolder"]:
        """The folder of a new run, or of one to be resumed, locked on rank 0 as long as the context lasts.

        Raises:
            ValueError: If a run is at work there or would be overwritten, or is resumed with other
                options than it had.
        """
        if resume and path is None:
            raise ValueError("--resume goes on with the run in --run-dir: name it")
        folder = RunFolder(path or _new_folder(Path("runs", Path(sys.argv[0]).stem), algorithm))
        if resume and not folder.config.exists():
            raise ValueError(
                f"there is nothing to resume: {folder.config} does not exist; start without --resume"
            )
        lock = RunLock(folder.path)
        if is_first_rank():
            lock.take()
        try:
            if resume:
                if (before := _mapping(folder.config)) is None:
                    raise ValueError(
                        f"{folder.config} is damaged: put there the options of the run, or start another"
                    )
                check_changes(before, plain(options))
            elif folder.config.exists() and (
                path or is_first_rank()
            ):  # a folder that has a name is every rank's
                raise ValueError(
                    f"{folder.path} holds a run already: add --resume to go on with it, or name another --run-dir"
                )
            yield folder
        finally:
            folder._leave(lock)

    def _leave(self, lock: RunLock) -> None:
        """Let go of the folder; take it away again if nothing was begun in it."""
        if is_first_rank() and set(self.path.iterdir()) <= {lock.path}:
            lock.remove()
            with suppress(OSError):  # another run has begun there
                self.path.rmdir()
        lock.release()

    @contextmanager
    def shared(self, fabric: Fabric) -> Iterator[None]:
        """Let the other ranks of the run hold the folder's lock too: one that outlives the first keeps others out."""
        first = Path(fabric.broadcast(str(self.path)))  # the others may have been given no folder
        lock = RunLock(first)
        with suppress(
            FileNotFoundError
        ):  # a rank whose folder is another is told so with the others, when all meet
            if not fabric.is_global_zero:
                lock.share()
        try:
            yield
        finally:
            lock.release()

    @rank_zero_only
    def write(self, options: Mapping[str, Any], fabric: Fabric) -> None:
        """Begin: write down the options, and what the run is made with."""
        _put(self.environment, environment(fabric))
        _put(self.config, plain(options))

    def keep(self, files: Iterable[Path], round: int) -> list[Path]:
        """Copy files of the user's into `own/`, beside earlier copies of them.

        Args:
            files: What the run is made of besides this package.
            round: Rounds that the run has had.

        Returns:
            Those that are not what they were when the run began.
        """
        changed = []
        for file in files:
            content, copy = (
                file.read_bytes(),
                self.path / "own" / str(file).strip("/").replace("/", "_"),
            )
            if copy.is_file() and copy.read_bytes() != content:
                changed.append(file)
                copy = copy.with_stem(f"{copy.stem}-from-round-{round + 1}")
            copy.parent.mkdir(exist_ok=True)
            copy.write_bytes(content)
        return changed

    def ranks_and_threads(self) -> tuple[int, int] | None:
        """The ranks that trained the run last, and threads of each; None if it is unknown, or was on a GPU."""
        made = _mapping(self.environment) or {}
        ranks, threads = made.get("ranks"), made.get("threads")
        if isinstance(ranks, int) and isinstance(threads, int) and made.get("device") == "cpu":
            return ranks, threads
        return None

    def interrupted(self) -> str:
        """What there is to go on with, for people who have just interrupted the run."""
        saved = saved_rounds(self.path)
        if not saved:
            return "interrupted before anything was saved"
        return f"interrupted: round {saved[-1]} is saved, go on with --run-dir {self.path} --resume"

    def results(self, sent: bool = True) -> str:
        """What came out and where it lies, for people.

        Args:
            sent: Whether clients send anything; the global model is nobody's work if not.
        """
        recorded = scalars(self.metrics)
        accuracies = recorded["test/accuracy"]
        best, tail = (
            max(accuracies, key=lambda k: accuracies[k]),
            [*accuracies.values()][-TAIL_LENGTH:],
        )
        lines = [
            f"test accuracy {tail[-1]:.2%}; best {accuracies[best]:.2%} in round {best}; "
            f"mean of the last {len(tail)} evaluations {fmean(tail):.2%}",
            _personal(recorded),
            f"curves:  tensorboard --logdir {self.path}",
            f"scalars: {self.metrics}",
            f"model:   {self.path / 'model.pt'}",
        ]
        if not sent:
            lines[0] = (
                f"clients send nothing: the global model is untrained, at a test accuracy of {tail[-1]:.2%}"
            )
            lines[1] = (
                lines[1]
                or f"to score clients' own models: --run-dir {self.path} --resume --finetune-epochs 1,5"
            )
            del lines[-1]
        return "\n".join(filter(None, lines))


def saved_rounds(folder: Path) -> list[int]:
    """The rounds of which a run's folder holds checkpoints, in order; files with other names are not the run's."""
    stems = [
        path.stem.removeprefix("round-") for path in (folder / "checkpoints").glob("round-*.ckpt")
    ]
    return sorted(int(stem) for stem in stems if stem.isdecimal())


def _mapping(path: Path) -> dict[str, Any] | None:
    """What a file of YAML says, if it is there and maps names to values."""
    try:
        content = yaml.safe_load(path.read_text())
    except (FileNotFoundError, UnicodeDecodeError, yaml.YAMLError):
        return None
    return content if isinstance(content, dict) else None


def _put(path: Path, content: Any) -> None:
    """Write YAML, whole or not at all."""
    aside = path.with_suffix(".part")
    aside.write_text(yaml.safe_dump(content, sort_keys=False))
    aside.replace(path)


def _personal(recorded: Scalars) -> str:
    """What the clients' own models reach, if that was scored."""

    def last(tag: str) -> float:
        return [*recorded[tag].values()][-1]

    told = [
        f"{last(tag):.2%} ± {last(tag.replace('accuracy', 'std')):.2%} after {tag.rpartition('_')[2]}"
        for tag, values in recorded.items()
        if tag.startswith("personal/accuracy_") and values
    ]
    return (
        f"own models, mean ± spread over clients: {', '.join(told)} epochs of fine-tuning"
        if told
        else ""
    )


def _new_folder(parent: Path, algorithm: str) -> Path:
    """A new folder <algorithm>-<number>; two runs that start together get two. Other ranks have no use for it."""
    for number in count():
        path = parent / f"{algorithm}-{number}"
        with suppress(FileExistsError):
            if is_first_rank():
                path.mkdir(parents=True)
            return path
    raise AssertionError("numbers do not end")


def plain(options: Any) -> Any:
    """Options as YAML holds them."""
    if isinstance(options, Mapping):
        return {k: plain(v) for k, v in options.items()}
    if isinstance(options, tuple | list):
        return [plain(v) for v in options]
    return str(options) if isinstance(options, Path) else options


def environment(fabric: Fabric) -> dict[str, Any]:
    """What the run was made with: versions, the git commit of this package, the command."""
    packages = "fl-lightning", "torch", "torchvision", "lightning", "torchmetrics", "numpy"
    return {
        "command": " ".join(sys.argv),
        "precision": fabric.strategy.precision.precision,
        "ranks": fabric.world_size,
        "threads": torch.get_num_threads(),
        "device": str(fabric.device),
        "git_commit": _git_commit(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        **{package: _version(package) for package in packages},
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _git_commit(file: Path = Path(__file__)) -> str | None:
    """The commit of the repository that this file belongs to; others, into which it was installed, do not count."""

    def git(*command: str) -> str:
        return subprocess.check_output(
            ["git", *command], cwd=file.parent, stderr=subprocess.DEVNULL, text=True
        ).strip()

    try:
        git("ls-files", "--error-unmatch", file.name)
        return git("describe", "--always", "--dirty", "--abbrev=40")
    except (OSError, subprocess.CalledProcessError):
        return None
