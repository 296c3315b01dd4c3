"""The folder of a run: its options, environment, scalars, client states and checkpoints."""

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
from fl_lightning.runs.chosen import Chosen, copy_in, recorded
from fl_lightning.runs.config_yaml import dump, load
from fl_lightning.runs.lock import RunLock
from fl_lightning.runs.resume import check_changes
from fl_lightning.runs.run import TAIL_LENGTH, Scalars, scalars

WRITTEN_OVER = "metrics.csv", "model.pt", "best.pt"
"""Files that a new run would write over."""


@dataclass(frozen=True)
class RunFolder:
    """The files of a run.

    Attributes:
        path: The folder.
    """

    path: Path

    @property
    def config(self) -> Path:
        """The resolved options, which `--config` reads."""
        return self.path / "config.yaml"

    @property
    def environment(self) -> Path:
        """The command, versions and hardware of the run."""
        return self.path / "environment.yaml"

    @property
    def metrics(self) -> Path:
        """The scalars, one row a round."""
        return self.path / "metrics.csv"

    @property
    def clients(self) -> Path:
        """The states that clients keep between rounds."""
        return self.path / "clients"

    @staticmethod
    @contextmanager
    def open(
        path: Path | None, algorithm: str, options: Mapping[str, Any], resume: bool
    ) -> Iterator["RunFolder"]:
        """Open the folder of a run, locked on rank 0 as long as the context lasts.

        Args:
            path: The folder; None makes a new one below `runs/`.
            algorithm: A name for a new folder.
            options: The run's options.
            resume: Whether a run in the folder is resumed; without one, a run begins.

        Raises:
            ValueError: If another run uses the folder or would be overwritten, or if a run is
                resumed with other options than it had.
        """
        if resume and path is None:
            raise ValueError("--resume continues the run in --run-dir: name it")
        folder = RunFolder(path or _new_folder(Path("runs", Path(sys.argv[0]).stem), algorithm))
        lock = RunLock(folder.path)
        if is_first_rank():
            lock.take()
        try:
            if resume and folder.config.exists():
                check_changes(folder._options(), to_yaml(options))
            elif folder.config.exists() and (path or is_first_rank()):  # a new folder is rank 0's
                raise ValueError(
                    f"{folder.path} holds a run already: add --resume to continue it, "
                    "or name another --run-dir"
                )
            elif path and (found := [n for n in WRITTEN_OVER if (path / n).exists()]):
                raise ValueError(
                    f"{path} holds a {found[0]} but no config.yaml of a run: name another --run-dir"
                )
            yield folder
        finally:
            folder._leave(lock)

    def _options(self) -> dict[str, Any]:
        options = _mapping(self.config)
        if options is None:
            raise ValueError(
                f"{self.config} is damaged: restore the run's options in it, or start another run"
            )
        return options

    def _leave(self, lock: RunLock) -> None:
        """Release the lock; remove the folder if no run has begun in it."""
        if is_first_rank() and set(self.path.iterdir()) <= {lock.path}:
            lock.remove()
            with suppress(OSError):  # another run has begun there
                self.path.rmdir()
        lock.release()

    @contextmanager
    def shared(self, fabric: Fabric) -> Iterator[None]:
        """Let all ranks hold the lock: one that outlives the first keeps other runs out."""
        lock = RunLock(Path(fabric.broadcast(str(self.path))))  # only rank 0 knows a new folder
        with suppress(FileNotFoundError):  # the rendezvous refuses a rank with another folder
            if not fabric.is_global_zero:
                lock.share()
        try:
            yield
        finally:
            lock.release()

    @rank_zero_only
    def write(
        self, options: Mapping[str, Any], fabric: Fabric, chosen: Mapping[str, Chosen]
    ) -> None:
        """Write the options and the environment of a run that begins."""
        _write(self.environment, environment(fabric) | recorded(chosen))
        _write(self.config, to_yaml(options))

    def copy_user_files(self, files: Iterable[Path], round: int) -> list[Path]:
        """Copy user-defined files into `own/`, next to earlier copies of them.

        Args:
            files: Files that the run uses besides this package.
            round: Rounds that the run has had.

        Returns:
            Files that have changed since the run began.
        """
        changed = []
        for file in files:
            content = file.read_bytes()
            copy = copy_in(self.path, file)
            if copy.is_file() and copy.read_bytes() != content:
                changed.append(file)
                copy = copy.with_stem(f"{copy.stem}-from-round-{round + 1}")
            copy.parent.mkdir(exist_ok=True)
            copy.write_bytes(content)
        return changed

    def ranks_and_threads(self) -> tuple[int, int] | None:
        """The last number of CPU ranks, and threads of each; None if unknown or on a GPU."""
        match _mapping(self.environment):
            case {"ranks": int(ranks), "threads": int(threads), "device": "cpu"}:
                return ranks, threads
        return None

    def interrupted(self) -> str:
        """The message after an interruption: the command that resumes the run."""
        saved = saved_rounds(self.path)
        if not saved:
            return "interrupted before anything was saved"
        again = f"--run-dir {self.path} --resume"
        return f"interrupted: round {saved[-1]} is saved, continue with {again}"

    def results_text(self, sent: bool = True) -> str:
        """The message after the last round: accuracies and files.

        Args:
            sent: Whether clients send anything; if not, the global model is untrained.
        """
        recorded = scalars(self.metrics)
        accuracies, validated = recorded["test/accuracy"], recorded.get("val/accuracy")
        best = max(accuracies, key=lambda k: (validated or accuracies)[k])
        chosen = f"best {accuracies[best]:.2%} in round {best}"
        if validated:
            chosen = f"{accuracies[best]:.2%} in round {best}, best on validation"
        tail = [*accuracies.values()][-TAIL_LENGTH:]
        personal = _personal(recorded)
        if sent:
            lines = [
                f"test accuracy {tail[-1]:.2%}; {chosen}; "
                f"mean of the last {len(tail)} evaluations {fmean(tail):.2%}",
                personal,
            ]
        else:
            again = f"--run-dir {self.path} --resume --finetune-epochs 1,5"
            lines = [
                "clients send nothing: the global model is untrained, "
                f"at a test accuracy of {tail[-1]:.2%}",
                personal or f"to score clients' personal models: {again}",
            ]
        lines += [
            f"curves:  tensorboard --logdir {self.path}",
            f"scalars: {self.metrics}",
            f"model:   {self.path / 'model.pt'}" if sent else "",
        ]
        return "\n".join(filter(None, lines))


def saved_rounds(folder: Path) -> list[int]:
    """The rounds of a run's checkpoints, in order; files with other names are ignored."""
    files = (folder / "checkpoints").glob("round-*.ckpt")
    stems = [file.stem.removeprefix("round-") for file in files]
    return sorted(int(stem) for stem in stems if stem.isdecimal())


def _mapping(path: Path) -> dict[str, Any] | None:
    """The mapping in a YAML file; None if the file is missing or damaged."""
    try:
        content = load(path.read_text())
    except (FileNotFoundError, UnicodeDecodeError, yaml.YAMLError):
        return None
    return content if isinstance(content, dict) else None


def _write(path: Path, content: Any) -> None:
    """Write YAML, whole or not at all."""
    aside = path.with_suffix(".part")
    aside.write_text(dump(content))
    aside.replace(path)


def _personal(recorded: Scalars) -> str:
    """The accuracy of the clients' personal models, if it was scored."""
    last = {tag: [*values.values()][-1] for tag, values in recorded.items() if values}
    scores = [
        f"{mean:.2%} ± {last[tag.replace('accuracy', 'std')]:.2%} after {tag.rpartition('_')[2]}"
        for tag, mean in last.items()
        if tag.startswith("personal/accuracy_")
    ]
    text = f"personal models, mean ± std over clients: {', '.join(scores)} epochs of fine-tuning"
    return text if scores else ""


def _new_folder(parent: Path, algorithm: str) -> Path:
    """A new folder <algorithm>-<number>; on other ranks than the first just a name."""
    for number in count():
        path = parent / f"{algorithm}-{number}"
        with suppress(FileExistsError):  # also of a run that starts at the same time
            if is_first_rank():
                path.mkdir(parents=True)
            return path
    raise AssertionError("numbers do not end")


def to_yaml(options: Any) -> Any:
    """Options in types that YAML has."""
    if isinstance(options, Mapping):
        return {k: to_yaml(v) for k, v in options.items()}
    if isinstance(options, tuple | list):
        return [to_yaml(v) for v in options]
    return str(options) if isinstance(options, Path) else options


def environment(fabric: Fabric) -> dict[str, Any]:
    """The command, hardware, versions, and git commit of this package."""
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
    """The commit of the repository that tracks this file; one around an installation is ignored."""

    def git(*command: str) -> str:
        return subprocess.check_output(
            ["git", *command], cwd=file.parent, stderr=subprocess.DEVNULL, text=True
        ).strip()

    try:
        git("ls-files", "--error-unmatch", file.name)
        return git("describe", "--always", "--dirty", "--abbrev=40")
    except (OSError, subprocess.CalledProcessError):
        return None
