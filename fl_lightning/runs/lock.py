"""The lock of a run's folder: two runs in it would mix their rows and checkpoints.

All ranks of a run hold it: a rank that outlives a killed run may still write, and keeps a new run
out. The system releases the lock when the last process ends. Some file systems have no locks.
"""

import fcntl
import os
import socket
from pathlib import Path
from typing import TextIO

from fl_lightning.errors import UserError

LOCK = ".lock"


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
