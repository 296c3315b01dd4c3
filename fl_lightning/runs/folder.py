"""The folder of a run: its options, environment, scalars, client states and checkpoints."""

import os
import platform
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from importlib.metadata import version
from itertools import count
from pathlib import Path
from statistics import fmean
from subprocess import DEVNULL
from typing import Any

import torch
from lightning.fabric import Fabric
from lightning.fabric.utilities.rank_zero import rank_zero_only

import fl_lightning
from fl_lightning.distributed.launcher_env import is_first_rank
from fl_lightning.files import atomic
from fl_lightning.runs.chosen import Chosen, copy_in, recorded
from fl_lightning.runs.config_yaml import dump, load
from fl_lightning.runs.lock import LOCK, share_lock, take_lock
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
            ValueError: If another run uses the folder, would be overwritten, or had other options.
        """
        if resume and path is None:
            raise ValueError("--resume continues the run in --run-dir: name it")
        folder = RunFolder(path or _new_folder(Path("runs", Path(sys.argv[0]).stem), algorithm))
        with take_lock(folder.path) if is_first_rank() else nullcontext():
            try:
                folder._check(path, options, resume)
                yield folder
            finally:
                if is_first_rank() and os.listdir(folder.path) == [LOCK]:  # no run has begun in it
                    (folder.path / LOCK).unlink()
                    with suppress(OSError):  # NFS keeps files that are open
                        folder.path.rmdir()

    def _check(self, named: Path | None, options: Mapping[str, Any], resume: bool) -> None:
        """Refuse other options than before, and files that would be written over."""
        if resume and self.config.exists():
            before = _mapping(self.config)
            if before is None:
                raise ValueError(
                    f"{self.config} is damaged: restore the run's options in it, or start another "
                    "run"
                )
            check_changes(before, to_yaml(options))
        elif self.config.exists() and (named or is_first_rank()):  # a new folder is rank 0's
            raise ValueError(
                f"{self.path} holds a run already: add --resume to continue it, "
                "or name another --run-dir"
            )
        elif named and (found := [n for n in WRITTEN_OVER if (named / n).exists()]):
            raise ValueError(
                f"{named} holds a {found[0]} but no config.yaml of a run: name another --run-dir"
            )

    @contextmanager
    def shared(self, fabric: Fabric) -> Iterator[None]:
        """Let all ranks hold the lock: one that outlives the first keeps other runs out."""
        folder = Path(fabric.broadcast(str(self.path)))  # only rank 0 knows a new folder
        with ExitStack() as held:
            with suppress(FileNotFoundError):  # the rendezvous refuses a rank with another folder
                if not fabric.is_global_zero:
                    held.enter_context(share_lock(folder))
            yield

    @rank_zero_only
    def write(
        self, options: Mapping[str, Any], fabric: Fabric, chosen: Mapping[str, Chosen]
    ) -> None:
        """Write the options and the environment of a run that begins."""
        for path, content in (
            (self.environment, environment(fabric) | recorded(chosen)),
            (self.config, to_yaml(options)),
        ):
            with atomic(path, "w") as file:
                file.write(dump(content))

    def copy_user_files(self, files: Iterable[Path], round: int) -> list[Path]:
        """Copy user-defined files into `own/`; returns those that have changed since round 0.

        Args:
            files: Files that the run uses besides this package.
            round: Rounds that the run has had.
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
        chosen = f"{accuracies[best]:.2%} in round {best}"
        chosen = f"{chosen}, best on validation" if validated else f"best {chosen}"
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
        lines += [f"curves:  tensorboard --logdir {self.path}", f"scalars: {self.metrics}"]
        lines += [f"model:   {self.path / 'model.pt'}"] if sent else []
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
    except (FileNotFoundError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def _personal(recorded: Scalars) -> str:
    """The accuracy of the clients' personal models, if it was scored."""
    last = {tag: [*values.values()][-1] for tag, values in recorded.items() if values}
    epochs = [tag.rpartition("_")[2] for tag in last if tag.startswith("personal/accuracy_")]
    scores = ", ".join(
        f"{last[f'personal/accuracy_{n}']:.2%} ± {last[f'personal/std_{n}']:.2%} after {n}"
        for n in epochs
    )
    text = f"personal models, mean ± std over clients: {scores} epochs of fine-tuning"
    return text if epochs else ""


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
    packages = "torch", "torchvision", "lightning", "torchmetrics", "numpy"
    return {
        "command": " ".join(sys.argv),
        "precision": fabric.strategy.precision.precision,
        "ranks": fabric.world_size,
        "threads": torch.get_num_threads(),
        "device": str(fabric.device),
        "git_commit": _git_commit(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "fl-lightning": fl_lightning.__version__,
        **{package: version(package) for package in packages},
    }


def _git_commit() -> str | None:
    """The commit of this package's clone; None if it is installed elsewhere."""
    clone = Path(__file__).parents[2]
    if not (clone / ".git").exists():
        return None
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40"]
    with suppress(OSError, subprocess.CalledProcessError):
        return subprocess.check_output(command, cwd=clone, stderr=DEVNULL, text=True).strip()
    return None
