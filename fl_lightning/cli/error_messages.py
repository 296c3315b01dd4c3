"""How a run that fails is told: in one sentence that says what to do, with a traceback only for our own mistakes."""

import os
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from errno import EACCES, EDQUOT, EEXIST, ENOSPC, ENOTDIR, EPERM, EPIPE, EROFS
from functools import wraps
from inspect import Parameter, signature
from pathlib import Path
from textwrap import shorten
from traceback import FrameSummary, extract_tb
from typing import Any

import torch

from fl_lightning import callbacks
from fl_lightning.errors import Diverged, ModelError, RankLost, TermError, first_sentence
from fl_lightning.sentences import fail

OURS = Path(__file__).parents[1], Path(callbacks.__file__).parent
ON_PURPOSE = *OURS, Path(torch.optim.__file__).parent
"""Where a ValueError is raised on purpose, in a sentence; torch.optim checks learning rates and the like."""

LIBRARIES = *(Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib")), Path(torch.__file__).parent

COLLECTIVES = Path(torch.distributed.__file__).parent
"""Where RuntimeErrors are of a rank that is gone."""

MACHINES = RankLost, OSError, torch.OutOfMemoryError
"""What need not happen to all ranks."""


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
        own = isinstance(error, MACHINES) or isinstance(error.__cause__, MACHINES) or _is_of_the_ranks(error)
        fail(said, alone=own or bool(getattr(error, "__notes__", [])))


def sentence(error: Exception) -> str | None:
    """What a user is told of an exception; None if the mistake may be ours, for which a traceback is right."""
    notes, frames = getattr(error, "__notes__", []), extract_tb(error.__traceback__)
    if isinstance(error, TermError | ModelError | Diverged | RankLost):
        told = str(error)
    elif _is_of_the_ranks(error) and not _users(frames):
        told = f"this rank has lost the others: one of them ended, or the connection broke ({first_sentence(error)})"
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
    named = [f for f in frames if not f.filename.startswith("<")]  # Python's own parts have no files
    frame = next((f for f in reversed(named) if not _lies_in(f, LIBRARIES) or _lies_in(f, OURS)), None)
    return frame if frame and not _lies_in(frame, OURS) else None


def _lies_in(frame: FrameSummary, folders: tuple[Path, ...]) -> bool:
    return any(map(Path(frame.filename).is_relative_to, folders))


HOOKS = {
    "on_fit_start": ("federation",),
    "on_round_end": ("federation", "metrics"),
    "on_round_logged": ("federation", "metrics"),
    "on_fit_end": ("federation",),
}
"""The hooks of a callback, and what each is called with, by name."""

OPEN = Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD
"""Parameters that take what there is."""


class Named:
    """A callback of the user's: what it raises says which callback and which hook it was.

    Raises:
        ValueError: If it has no hook, or one that cannot be called.
    """

    def __init__(self, callback: Any):
        self._callback = callback
        hooks = {name: hook for name in HOOKS if callable(hook := getattr(callback, name, None))}
        if not hooks or isinstance(callback, type):
            raise ValueError(f"a callback is an object with one of the methods {', '.join(HOOKS)}, not {callback!r}")
        for name, hook in hooks.items():
            needed = {
                p.name for p in signature(hook).parameters.values() if p.default is p.empty and p.kind not in OPEN
            }
            if other := sorted(needed.difference(HOOKS[name])):
                raise ValueError(
                    f"{type(callback).__name__}.{name} asks for {', '.join(other)}, but is called by name with "
                    f"{' and '.join(HOOKS[name])}"
                )

    def __getattr__(self, name: str) -> Any:
        hook = getattr(self._callback, name)
        return _blaming(f"{type(self._callback).__name__}.{name}", hook) if callable(hook) else hook


def _blaming(where: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        try:
            returned = function(*args, **kwargs)
            _check_numbers(kwargs.get("metrics", {}))
            return returned
        except Exception as error:
            error.add_note(f"raised in {where}")
            raise

    return called


def _check_numbers(metrics: dict[str, Any]) -> None:
    """Let every scalar of a round be a float.

    Raises:
        ValueError: If one is none, or takes the table's column of rounds.
    """
    for tag, value in metrics.items():
        try:
            metrics[tag] = float(value)
        except (TypeError, ValueError, RuntimeError):
            raise ValueError(f"metrics[{tag!r}] is to be one number, not {shorten(repr(value), 80)}") from None
    if "round" in metrics:
        raise ValueError("metrics['round'] is the number of the round in metrics.csv: choose another name")
