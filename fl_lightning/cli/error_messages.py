"""How a run that fails is told: in one sentence that says what to do, with a traceback only for our own mistakes."""

import os
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from errno import EACCES, EDQUOT, EEXIST, ENOSPC, ENOTDIR, EPERM, EPIPE, EROFS
from pathlib import Path
from traceback import FrameSummary, extract_tb
from typing import NoReturn

import torch

from fl_lightning import callbacks
from fl_lightning.distributed.launcher_env import is_first_rank
from fl_lightning.errors import (
    DivergenceError,
    ModelError,
    RankLostError,
    TermError,
    first_sentence,
)

OURS = Path(__file__).parents[1], Path(callbacks.__file__).parent
ON_PURPOSE = *OURS, Path(torch.optim.__file__).parent
"""Where a ValueError is raised on purpose, in a sentence; torch.optim checks learning rates and the like."""

LIBRARIES = (
    *(Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib")),
    Path(torch.__file__).parent,
)

COLLECTIVES = Path(torch.distributed.__file__).parent
"""Where RuntimeErrors are of a rank that is gone."""

MACHINES = RankLostError, OSError, torch.OutOfMemoryError
"""What need not happen to all ranks."""


@contextmanager
def exit_with_message() -> Iterator[None]:
    """Leave with one sentence and exit code 2 where one can be said; anything else keeps its traceback.

    With FL_LIGHTNING_TRACEBACK=1 in the environment everything keeps it.
    """
    try:
        yield
    except Exception as error:
        said = None if os.environ.get("FL_LIGHTNING_TRACEBACK") else user_message(error)
        if said is None:
            raise
        # whose training it was, or what is wrong with its machine, this rank alone may know
        own = (
            isinstance(error, MACHINES)
            or isinstance(error.__cause__, MACHINES)
            or _is_of_the_ranks(error)
        )
        exit_with_error(said, alone=own or bool(getattr(error, "__notes__", [])))


def user_message(error: Exception) -> str | None:
    """What a user is told of an exception; None if the mistake may be ours, for which a traceback is right."""
    notes, frames = getattr(error, "__notes__", []), extract_tb(error.__traceback__)
    if isinstance(error, TermError | ModelError | DivergenceError | RankLostError):
        told = str(error)
    elif _is_of_the_ranks(error) and not _users(frames):
        told = f"this rank has lost the others: one of them ended, or the connection broke ({first_sentence(error)})"
    elif isinstance(error, torch.OutOfMemoryError):
        told = f"the memory of the device does not suffice ({first_sentence(error)}): lower --batch-size or --parallel-clients"
    elif isinstance(error, OSError):
        told = _of_the_system(error)
    elif isinstance(error, ValueError) and _lies_in(frames[-1], ON_PURPOSE):
        told = str(error)
    elif frame := _users(frames):
        where = f"{Path(frame.filename).name}, line {frame.lineno}"
        told = f"{type(error).__name__}: {error} ({where}; FL_LIGHTNING_TRACEBACK=1 shows how it came there)"
    else:
        return None
    return " ".join(" ".join([told, *(f"({note})" for note in notes)]).split())


def _is_of_the_ranks(error: Exception) -> bool:
    """Whether it came while the ranks talked to each other."""
    frames = extract_tb(error.__traceback__)
    return isinstance(error, RuntimeError) and bool(frames) and _lies_in(frames[-1], (COLLECTIVES,))


def _of_the_system(error: OSError) -> str:
    file = error.filename or "the run's folder"
    if error.errno in (ENOSPC, EDQUOT):
        return (
            f"the disk is full, and {file} could not be written: free some space and go on with --resume, the "
            "checkpoints so far are whole"
        )
    if error.errno in (EROFS, EACCES, EPERM, ENOTDIR, EEXIST):
        return f"{file} cannot be used ({error.strerror}): name a folder that can be written to as --run-dir"
    if error.errno == EPIPE:
        return "nobody reads any more what this program prints: let it print into a file, and go on with --resume"
    return f"{file}: {error.strerror}" if error.strerror else str(error)


def _users(frames: list[FrameSummary]) -> FrameSummary | None:
    """The innermost frame outside of libraries, if it is not ours."""
    named = [
        f for f in frames if not f.filename.startswith("<")
    ]  # Python's own parts have no files
    frame = next(
        (f for f in reversed(named) if not _lies_in(f, LIBRARIES) or _lies_in(f, OURS)), None
    )
    return frame if frame and not _lies_in(frame, OURS) else None


def _lies_in(frame: FrameSummary, folders: tuple[Path, ...]) -> bool:
    return any(map(Path(frame.filename).is_relative_to, folders))


def exit_with_error(user_message: str, alone: bool = False) -> NoReturn:
    """Leave with one sentence and exit code 2; of several ranks only the first speaks, unless one failed alone."""
    another_console = (
        os.environ.get("LOCAL_RANK") == "0"
    )  # torchrun's on each machine; SLURM has one for all
    if alone or is_first_rank() or another_console:
        print(f"error: {user_message}", file=sys.stderr)
    raise SystemExit(2)
