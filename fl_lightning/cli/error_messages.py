"""Mistakes of a user as one sentence and exit code 2; every other error keeps its traceback."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from errno import EACCES, EDQUOT, EEXIST, EFBIG, ENAMETOOLONG, ENOSPC, ENOTDIR, EPERM, EROFS
from pathlib import Path
from time import sleep
from traceback import extract_tb
from typing import NoReturn

import torch

from fl_lightning.distributed.launch_options import is_first_rank
from fl_lightning.errors import DivergenceError, RankLostError, UserError, first_sentence

OF_DISKS = ENOSPC, EDQUOT, EFBIG, EROFS, EACCES, EPERM, ENOTDIR, EEXIST, ENAMETOOLONG
"""Numbers of errors that another disk or folder mends."""

LAUNCHER_S = 10
"""Seconds in which a launcher names the rank that ended and ends the others (Lightning: 5)."""


@contextmanager
def exit_with_message() -> Iterator[None]:
    """Leave with one sentence and exit code 2 after a mistake of the user; raise all else.

    With FL_LIGHTNING_TRACEBACK=1 in the environment every error is raised.
    """
    try:
        yield
    except Exception as error:
        message = "" if os.environ.get("FL_LIGHTNING_TRACEBACK") else _sentence(error)
        if not message:
            raise
        if _lost_rank(error) or _lost_rank(error.__cause__):
            sleep(LAUNCHER_S)
        notes = getattr(error, "__notes__", [])  # they may name this rank's clients
        alone = bool(notes) or not isinstance(error, UserError | DivergenceError)
        message = " ".join([message, *(f"({note})" for note in notes)])
        exit_with_error(" ".join(message.split()), on_this_rank=alone)


def _sentence(error: Exception) -> str:
    """The sentence for a user's mistake, a lost rank or a disk; empty for other errors."""
    if isinstance(error, UserError | DivergenceError | RankLostError):
        return str(error)
    if _lost_rank(error):
        reason = first_sentence(error)
        return f"another rank ended, or the connection to it broke ({reason})"
    if isinstance(error, OSError) and error.errno in OF_DISKS:
        file = error.filename or "the run's folder"
        return (
            f"{file} cannot be written ({error.strerror}): free some space, or name another "
            "folder; --resume continues a run"
        )
    return ""


def _lost_rank(error: BaseException | None) -> bool:
    """Whether a collective operation of the ranks raised it."""
    if not isinstance(error, RuntimeError):
        return False
    # here, because it imports for seconds, and `fl-lightning list` needs no ranks
    from lightning.fabric.utilities import distributed as fabric_distributed

    collectives = Path(torch.distributed.__file__).parent, Path(fabric_distributed.__file__)
    raised_in = [Path(frame.filename) for frame in extract_tb(error.__traceback__)[-1:]]
    return any(file.is_relative_to(place) for file in raised_in for place in collectives)


def exit_with_error(message: str, on_this_rank: bool = False) -> NoReturn:
    """Leave with exit code 2 and one sentence; only the first rank prints it.

    A rank that fails alone prints it with `on_this_rank`.
    """
    # torchrun has a console on each machine
    if on_this_rank or is_first_rank() or os.environ.get("LOCAL_RANK") == "0":
        print(f"error: {message}", file=sys.stderr)
    raise SystemExit(2)
