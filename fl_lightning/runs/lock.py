"""The lock of a run's folder: two runs in it would mix their rows and checkpoints."""

import fcntl
import os
import socket
from pathlib import Path
from typing import TextIO


class RunLock:
    """A file lock that all ranks of a run hold; it ends with the last process, however that ends.

    The first rank takes the lock alone and then shares it with the other ranks. A rank that
    outlives a killed run keeps a new one out while it may still write. File systems without locks
    have none.

    Args:
        folder: The run's folder.
    """

    def __init__(self, folder: Path):
        self.path = folder / ".lock"
        self._file: TextIO | None = None

    def take(self) -> None:
        """Take the lock as the first rank.

        Raises:
            ValueError: If another run holds it.
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
                f"a run is at work in {self.path.parent} (process {owner}, or one of its ranks): "
                "wait for it, or name another --run-dir"
            ) from None
        if not os.fstat(file.fileno()).st_nlink:  # its holder has removed it
            file.close()
            self.take()
            return
        file.truncate(0)
        file.write(f"{os.getpid()} on {socket.gethostname()}")
        file.flush()
        self._file = file

    def share(self) -> None:
        """Share the lock as another rank of the same run, after the first rank has taken it."""
        self._file = self.path.open("r")
        _lock(self._file, fcntl.LOCK_SH)

    def release(self) -> None:
        """Release the lock, if it is held."""
        if self._file:
            self._file.close()
            self._file = None

    def remove(self) -> None:
        """Release the lock and delete its file, in a folder where no run has begun."""
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
