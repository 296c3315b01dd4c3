"""The folder of a run while it is trained: opened, locked, and written."""

import fcntl
import os
import platform
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import cache
from importlib.metadata import version
from itertools import count
from pathlib import Path
from shlex import join, quote
from subprocess import DEVNULL
from typing import Any, TextIO

import torch
from lightning.fabric import Fabric

import fl_lightning
from fl_lightning.distributed.launch_options import is_first_rank
from fl_lightning.errors import UserError
from fl_lightning.files import atomic
from fl_lightning.runs.chosen import Chosen
from fl_lightning.runs.code import copies
from fl_lightning.runs.config import Config, dump
from fl_lightning.runs.run import Run, saved_rounds

WRITTEN_OVER = "metrics.csv", "model.pt", "best.pt"
"""Files that a new run would write over."""

LOCK = ".lock"
"""The lock: two runs in a folder would mix their rows and checkpoints.

All ranks of a run hold it: a rank that outlives a killed run may still write, and keeps a new run
out. The system releases the lock when the last process ends. Some file systems have no locks.
"""


@contextmanager
def open_run(path: Path | None, method: str, config: Config, resume: bool) -> Iterator[Run]:
    """Open the folder of a run, locked on rank 0 as long as the context lasts.

    Args:
        path: The folder; None makes a new one below `runs/`.
        method: A name for a new folder.
        config: The run's options.
        resume: Whether a run in the folder is resumed; without one, a run begins.

    Raises:
        UserError: If another run uses the folder, would be overwritten, or had other options.
    """
    if resume and path is None:
        raise UserError("--resume continues the run in --run-dir: name it")
    folder = path or _new_folder(Path("runs", program_name()), method)
    with take_lock(folder) if is_first_rank() else nullcontext():
        try:
            _check(folder, bool(path), config, resume)
            yield Run(folder, config)
        finally:
            exists = is_first_rank() and folder.is_dir()
            if exists and os.listdir(folder) == [LOCK]:  # no run has begun in it
                (folder / LOCK).unlink()
                with suppress(OSError):  # NFS keeps files that are open
                    folder.rmdir()
                    if path is None:
                        os.removedirs(folder.parent)


def program_name() -> str:
    """The name of the script, or `notebook`."""
    program = Path(sys.argv[0]).stem
    return "notebook" if program.endswith("kernel_launcher") else program  # Jupyter's and Colab's


def _check(folder: Path, named: bool, config: Config, resume: bool) -> None:
    """Refuse other options than before, and files that would be written over."""
    exists = (folder / "config.yaml").exists()
    if resume and exists:
        try:
            before = Config.read(folder)
        except (OSError, ValueError, AttributeError) as error:
            raise UserError(
                f"{folder / 'config.yaml'} is damaged ({error}): restore the run's options in it, "
                "or start another run"
            ) from None
        before.check_resumption(config)
    elif exists and (named or is_first_rank()):  # a new folder is rank 0's
        raise UserError(
            f"{folder} holds a run already: add --resume to continue it, or change or leave out "
            "--run-dir"
        )
    elif named and (found := [n for n in WRITTEN_OVER if (folder / n).exists()]):
        raise UserError(
            f"{folder} holds a {found[0]} but no config.yaml of a run: name another --run-dir"
        )


def shared(run: Run, fabric: Fabric) -> AbstractContextManager[Any]:
    """Let all ranks hold the lock: a rank that outlives the first one keeps other runs out."""
    if not fabric.is_global_zero:
        with suppress(FileNotFoundError):  # the rendezvous refuses a rank with another folder
            return share_lock(run.path)
    return nullcontext()


def begin(
    run: Run,
    fabric: Fabric,
    chosen: Mapping[str, Chosen],
    files: Iterable[Path],
    round: int,
    scores: Mapping[str, bool],
    data: Sequence[str],
) -> None:
    """Write the options, the environment and the user's code of a run that begins or continues.

    Call it on the first rank. The run has had so many rounds; for the scores see `Run.scores`.
    `data` are the digests of the training and the test set.
    """
    made = _environment(fabric, chosen) | {"scores": dict(scores), "data": [*data]}
    _write(run.path / "environment.yaml", dump(made))
    _write(run.path / "config.yaml", run.config.text())
    for part, file in copies(files).items():
        content, copy = file.read_bytes(), run.path / part
        if copy.is_file() and copy.read_bytes() != content:
            print(f"note: {file} has changed since the run began ({run.path / 'own'})")
            copy = copy.with_stem(f"{copy.stem}-from-round-{round + 1}")
        with atomic(copy) as written:
            written.write(content)


def end(run: Run, round: int, reason: str) -> None:
    """Record that the run has ended after a round, on the first rank; `begin` takes it back."""
    file = run.path / "environment.yaml"
    _write(file, file.read_text() + dump({"ended": {"round": round, "reason": reason}}))


def interrupted(run: Run) -> str:
    """The message after an interruption: the command that resumes the run."""
    saved = saved_rounds(run.path)
    if not saved:
        return "interrupted before anything was saved"
    again = f"--run-dir {quote(str(run.path))} --resume"
    return f"interrupted: round {saved[-1]} is saved, continue with {again}"


def _write(path: Path, content: str) -> None:
    with atomic(path, "w") as file:
        file.write(content)


def _new_folder(parent: Path, method: str) -> Path:
    """A new folder <method>-<number>; on other ranks than the first just a name."""
    for number in count():
        path = parent / f"{method}-{number}"
        with suppress(FileExistsError):  # also of a run that starts at the same time
            if is_first_rank():
                path.mkdir(parents=True)
            return path
    raise AssertionError("numbers do not end")


def _environment(fabric: Fabric, chosen: Mapping[str, Chosen]) -> dict[str, Any]:
    """The command, hardware, versions, git commit of this package, and what `find_chosen` needs."""
    packages = "torch", "torchvision", "lightning", "torchmetrics", "numpy"
    return {
        "command": join(sys.argv),
        "precision": fabric.strategy.precision.precision,
        "ranks": fabric.world_size,
        "threads": torch.get_num_threads(),
        "device": str(fabric.device),
        "git_commit": _git_commit(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "fl-lightning": fl_lightning.__version__,
        **{name: version(name) for name in packages},
        "directory": str(Path.cwd()),
        "recipe": sys.argv[0],
        "functions": {kind: choice.place for kind, choice in chosen.items()},
    }


@cache
def _git_commit() -> str | None:
    """The commit of this package's clone; None if it is installed elsewhere."""
    clone = Path(__file__).parents[2]
    if not (clone / ".git").exists():
        return None
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40"]
    with suppress(OSError, subprocess.CalledProcessError):
        return subprocess.check_output(command, cwd=clone, stderr=DEVNULL, text=True).strip()
    return None


def take_lock(folder: Path) -> TextIO:
    """Take the lock as the first rank, until the file closes; a UserError if another run has it."""
    folder.mkdir(parents=True, exist_ok=True)
    file = (folder / LOCK).open("a+")
    try:
        _lock(file, fcntl.LOCK_EX)
        _lock(file, fcntl.LOCK_SH)
    except BlockingIOError:
        with file:
            file.seek(0)
            owner = file.read().strip() or "unknown"
        raise UserError(
            f"a run is at work in {folder} (process {owner}, or one of its ranks): "
            "wait for it, or name another --run-dir"
        ) from None
    file.truncate(0)
    file.write(f"{os.getpid()} on {socket.gethostname()}")
    file.flush()
    return file


def lock_owner(folder: Path) -> str:
    """The process that took the lock last; empty if nobody has."""
    file = folder / LOCK
    return file.read_text() if file.exists() else ""


def share_lock(folder: Path) -> TextIO:
    """Share the lock as another rank of the same run, after the first rank has taken it."""
    file = (folder / LOCK).open("r")
    _lock(file, fcntl.LOCK_SH)
    return file


def _lock(file: TextIO, kind: int) -> None:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:  # this file system has no locks
        return
