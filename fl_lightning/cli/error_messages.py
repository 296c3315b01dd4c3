"""Errors as one sentence that says what to do; mistakes of this package keep their traceback."""

import os
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from errno import EACCES, EDQUOT, EEXIST, ENOSPC, ENOTDIR, EPERM, EPIPE, EROFS
from importlib.util import find_spec
from pathlib import Path
from time import sleep
from traceback import FrameSummary, extract_tb
from typing import NoReturn

import torch

from fl_lightning.distributed.launcher_env import is_first_rank
from fl_lightning.errors import (
    DivergenceError,
    ModelError,
    RankLostError,
    TermError,
    first_sentence,
)


def _folder(module: str) -> Path:
    """The folder of a module, without importing it, which may take seconds."""
    spec = find_spec(module)
    return Path(spec.origin or "").parent if spec else Path()


PACKAGE = Path(__file__).parents[1], _folder("fl_lightning.callbacks")
RECIPES = Path(__file__).parents[1] / "recipes"
"""Installed with the package, but programs like those of a user."""

CHECKED = *PACKAGE, Path(torch.optim.__file__).parent
"""Where a ValueError is raised on purpose; torch.optim checks learning rates and the like."""

LIBRARIES = (
    *(Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib")),
    Path(torch.__file__).parent,
    _folder("lightning"),
)

COLLECTIVES = (
    Path(torch.distributed.__file__).parent,
    _folder("lightning") / "fabric/utilities/distributed.py",
)
"""Where a RuntimeError means that another rank ended."""

LAUNCHER_S = 10
"""Seconds in which a launcher names the rank that ended and ends the others (Lightning: 5)."""


@contextmanager
def exit_with_message() -> Iterator[None]:
    """Leave with one sentence and exit code 2 where one is known; else raise.

    With FL_LIGHTNING_TRACEBACK=1 in the environment every error is raised.
    """
    try:
        yield
    except Exception as error:
        message = None if os.environ.get("FL_LIGHTNING_TRACEBACK") else user_message(error)
        if message is None:
            raise
        if any(map(_is_lost_rank, (error, error.__cause__))):
            sleep(LAUNCHER_S)
        of_one_rank = any(map(_is_of_one_rank, (error, error.__cause__)))
        notes = getattr(error, "__notes__", [])  # they may name this rank's clients
        exit_with_error(message, of_one_rank or bool(notes))


def _is_first_to_say(message: str) -> bool:
    """Whether no other rank has printed this message; True where the ranks cannot be asked.

    The ranks wait a second for each other, since the store ends with one of them.
    """
    place, key = 1, f"fl_lightning: {message}"
    with suppress(ValueError, RuntimeError):  # there is one rank; or the store's rank has ended
        store = torch.distributed.distributed_c10d._get_default_store()
        place = store.add(key, 1)
        for _ in range(20):
            if store.add(key, 0) == torch.distributed.get_world_size():
                break
            sleep(0.05)
    return place == 1


def user_message(error: Exception) -> str | None:
    """The sentence for an exception; None if it may be a mistake of this package."""
    notes, frames = getattr(error, "__notes__", []), extract_tb(error.__traceback__)
    user_frame = _user_frame(frames)
    if isinstance(error, TermError | ModelError | DivergenceError | RankLostError):
        message = str(error)
    elif _is_lost_rank(error) and not user_frame:
        reason = first_sentence(error)
        message = f"another rank ended, or the connection to it broke ({reason})"
    elif _is_out_of_memory(error):
        reason = first_sentence(error).rpartition("DefaultCPUAllocator: ")[2]
        message = f"not enough memory ({reason}): lower --batch-size or --parallel-clients"
    elif isinstance(error, OSError):
        message = _system_message(error)
    elif isinstance(error, ValueError) and _is_in(frames[-1], CHECKED):
        message = str(error)
    elif isinstance(error, SyntaxError):
        message = f"SyntaxError: {error}"
    elif user_frame:
        where = f"{Path(user_frame.filename).name}, line {user_frame.lineno}"
        hint = "FL_LIGHTNING_TRACEBACK=1 shows the traceback"
        message = f"{type(error).__name__}: {error} ({where}; {hint})"
    else:
        return None
    return " ".join(" ".join([message, *(f"({note})" for note in notes)]).split())


def _is_of_one_rank(error: BaseException | None) -> bool:
    """Whether an error need not happen to all ranks."""
    return (
        isinstance(error, RankLostError | OSError)
        or _is_out_of_memory(error)
        or _is_lost_rank(error)
    )


def _is_lost_rank(error: BaseException | None) -> bool:
    """Whether it came from a collective of the ranks."""
    frames = extract_tb(error.__traceback__) if isinstance(error, RuntimeError) else []
    return bool(frames) and _is_in(frames[-1], COLLECTIVES)


def _is_out_of_memory(error: BaseException | None) -> bool:
    """Whether a GPU's memory, Python's or that of torch's CPU tensors was not enough."""
    of_cpu_tensors = isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)
    return of_cpu_tensors or isinstance(error, MemoryError | torch.OutOfMemoryError)


def _system_message(error: OSError) -> str:
    file = error.filename or "the run's folder"
    if error.errno in (ENOSPC, EDQUOT):
        return f"the disk is full, {file} could not be written: free some space, then add --resume"
    if error.errno in (EROFS, EACCES, EPERM, ENOTDIR, EEXIST):
        return f"{file} cannot be used ({error.strerror}): give a writable folder as --run-dir"
    if error.errno == EPIPE:
        return "the reader of this program's output ended: print into a file, and add --resume"
    return f"{file}: {error.strerror}" if error.strerror else str(error)


def _user_frame(frames: list[FrameSummary]) -> FrameSummary | None:
    """The innermost frame outside of libraries, unless it is of this package."""
    named = [f for f in frames if not f.filename.startswith("<")]  # not Python's own, as <frozen>
    for frame in reversed(named):
        if _is_in(frame, PACKAGE) and not _is_in(frame, [RECIPES]):
            return None
        if not _is_in(frame, LIBRARIES) or _is_in(frame, [RECIPES]):
            return frame
    return None


def _is_in(frame: FrameSummary, folders: Iterable[Path]) -> bool:
    return any(map(Path(frame.filename).is_relative_to, folders))


def exit_with_error(message: str, on_one_rank: bool = False) -> NoReturn:
    """Leave with exit code 2 and one sentence, of the first rank unless one failed alone."""
    # torchrun has a console on each machine
    first = is_first_rank() or os.environ.get("LOCAL_RANK") == "0"
    if _is_first_to_say(message) if on_one_rank else first:
        print(f"error: {message}", file=sys.stderr)
    raise SystemExit(2)
