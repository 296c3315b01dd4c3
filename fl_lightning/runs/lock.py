"""The lock of a run's folder: two runs in one folder would mix their rows and checkpoints."""

import fcntl
import os
import socket
from pathlib import Path
from typing import TextIO


class RunLock:
    """Held by every rank of a run, through the operating system: it ends with the last process, however that ends.

    The first rank makes sure that nobody else holds the lock and then shares it with its other
    ranks. So a rank that outlives a killed run keeps a new one out for as long as it may still
    write. Where the file system knows no locks there is none.

    Args:
        folder: The run's folder.
    """

    def __init__(self, folder: Path):
        self.path = folder / ".lock"
        self._file: TextIO | None = None

    def take(self) -> None:
        """Hold the lock as the first rank.

        Raises:
            ValueError: If a process of another run holds it.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        file = self.path.open("a+")
        try:
            _lock(file, fcntl.LOCK_EX)
            _lock(file, fcntl.LOCK_SH)
        except BlockingIOError:
            file.seek(0)
            owner = file.read().strip() or "unknown"
            file.close()
            raise ValueError(
                f"a run is at work in {self.path.parent} (process {owner}, or a rank of it that is still ending): wait "
                "for it, or name another --run-dir"
            ) from None
        if not os.fstat(file.fileno()).st_nlink:  # the one who held it has removed it
            file.close()
            return self.take()
        file.truncate(0)
        file.write(f"{os.getpid()} on {socket.gethostname()}")
        file.flush()
        self._file = file
        return None

    def share(self) -> None:
        """Hold the lock as another rank of the same run, once the first rank has it."""
        self._file = self.path.open("r")
        _lock(self._file, fcntl.LOCK_SH)

    def release(self) -> None:
        """Let go; nothing happens if the lock is not held."""
        if self._file:
            self._file.close()
            self._file = None

    def remove(self) -> None:
        """Let go, and leave no file behind: for a folder in which nothing was begun."""
        if self._file:
            self.path.unlink(missing_ok=True)
        self.release()


def _lock(file: TextIO, kind: int) -> None:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:  # this file system has no locks
        return
