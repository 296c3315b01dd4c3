"""How a run that fails is told: in one sentence that says what to do, with a traceback only for our own mistakes."""

import os
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from errno import EACCES, EDQUOT, EEXIST, ENOSPC, ENOTDIR, EPERM, EROFS
from functools import wraps
from pathlib import Path
from traceback import FrameSummary, extract_tb
from typing import Any

import torch

from fl_lightning import callbacks
from fl_lightning.divergence import Diverged
from fl_lightning.federation import RankLost
from fl_lightning.oracle import ModelError
from fl_lightning.sentences import fail, first_sentence
from fl_lightning.term import TermError

OURS = Path(__file__).parent, Path(callbacks.__file__).parent
ON_PURPOSE = *OURS, Path(torch.optim.__file__).parent
"""Where a ValueError is raised on purpose, in a sentence; torch.optim checks learning rates and the like."""

LIBRARIES = *(Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib")), Path(torch.__file__).parent


@contextmanager
def in_one_sentence() -> Iterator[None]:
    """Leave with one sentence and exit code 2 where one can be said; anything else keeps its traceback.

    With FL_LIGHTNING_TRACEBACK=1 in the environment everything keeps it.
    """
    try:
        yield
    except Exception as error:
        said = None if os.environ.get("FL_LIGHTNING_TRACEBACK") else sentence(error)
        if said is None:
            raise
        # whose training it was, or what is wrong with its machine, this rank alone may know
        fail(said, alone=bool(getattr(error, "__notes__", [])) or isinstance(error, RankLost | OSError))


def sentence(error: Exception) -> str | None:
    """What a user is told of an exception; None if the mistake may be ours, for which a traceback is right."""
    notes, frames = getattr(error, "__notes__", []), extract_tb(error.__traceback__)
    if isinstance(error, TermError | ModelError | Diverged | RankLost):
        told = str(error)
    elif isinstance(error, torch.OutOfMemoryError):
        told = f"the memory of the device does not suffice ({first_sentence(error)}): lower --batch-size or --width"
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


def _of_the_system(error: OSError) -> str:
    file = error.filename or "the run's folder"
    if error.errno in (ENOSPC, EDQUOT):
        return (
            f"the disk is full, and {file} could not be written: free some space and go on with --resume, the "
            "checkpoints so far are whole"
        )
    if error.errno in (EROFS, EACCES, EPERM, ENOTDIR, EEXIST):
        return f"{file} cannot be used ({error.strerror}): name a folder that can be written to as --run-dir"
    return f"{file}: {error.strerror}" if error.strerror else str(error)


def _users(frames: list[FrameSummary]) -> FrameSummary | None:
    """The innermost frame outside of libraries, if it is not ours."""
    frame = next((f for f in reversed(frames) if not _lies_in(f, LIBRARIES) or _lies_in(f, OURS)), None)
    return frame if frame and not _lies_in(frame, OURS) else None


def _lies_in(frame: FrameSummary, folders: tuple[Path, ...]) -> bool:
    return any(map(Path(frame.filename).is_relative_to, folders))


class Named:
    """A callback of the user's: what it raises says which callback and which hook it was."""

    def __init__(self, callback: Any):
        self._callback = callback

    def __getattr__(self, name: str) -> Any:
        hook = getattr(self._callback, name)
        return _blaming(f"{type(self._callback).__name__}.{name}", hook) if callable(hook) else hook


def _blaming(where: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            error.add_note(f"raised in {where}")
            raise

    return called
