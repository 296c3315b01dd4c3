"""Row files: rows of bytes in sparse files, with a bound on what stays in the system's memory."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from errno import EIO
from itertools import groupby
from mmap import PAGESIZE
from pathlib import Path

from torch import Tensor


class RowFiles:
    """A row of bytes for each client and slot, in one sparse file a slot. Processes share the files.

    Files are read and written by plain calls, and not mapped: a mapped row that finds the disk full
    ends the process with SIGBUS; mapped pages count as the process's memory, and nobody can drop
    them while another process maps them; and machines that share a folder see the same content of a
    file that is opened for each access and closed after it.

    What stays in memory is the system's cache of the files. With a bound, this process remembers
    the rows that it has touched. When they reach the bound, it puts the older half on disk and lets
    the system drop them.

    Args:
        folder: Where the files lie; made with the first row that is written.
        row: Bytes of a row.
        memory: Bytes of rows that this process may leave in memory; None leaves it to the system,
            which drops rows when programs need the room.

    Raises:
        ValueError: If not even one row fits, or this system cannot drop rows.
    """

    def __init__(self, folder: Path, row: int, memory: int | None = None):
        self._folder, self._row = folder, row
        self._most = None if memory is None or not row else memory // _resident(row)
        self._cached: dict[tuple[int, int], None] = {}  # slot and client, the latest at the end
        if self._most is None:
            return
        if self._most == 0:
            raise ValueError(
                f"client_state_memory leaves {memory:,} bytes for each rank on this machine, but a "
                f"client's row takes {_resident(row):,}: raise it to that, times the ranks"
            )
        if not hasattr(os, "posix_fadvise"):
            raise ValueError(
                "this system cannot drop rows from memory (no posix_fadvise): omit "
                "client_state_memory"
            )
        for path in self._files():  # left in memory by an earlier process
            with _open(path, os.O_RDONLY) as file:
                _drop(file)

    def read(self, slot: int, client: int, content: Tensor) -> Tensor:
        """Read the row into `content`, (bytes,) uint8 on the CPU, and return that.

        Raises:
            OSError: If the file does not hold it.
        """
        self._make_room(slot, client)
        with self._opened(slot, os.O_RDONLY) as file:
            self._move(lambda part, offset: os.preadv(file, [part], offset), client, content)
        return content

    def write(self, slot: int, client: int, content: Tensor) -> None:
        """Write the row, (bytes,) uint8 on the CPU."""
        self._make_room(slot, client)
        self._folder.mkdir(parents=True, exist_ok=True)
        with self._opened(slot, os.O_RDWR | os.O_CREAT) as file:
            self._move(lambda part, offset: os.pwrite(file, part, offset), client, content)

    def flush(self) -> None:
        """Put all rows, and the names of the files, on disk."""
        for path in [*self._files(), *([self._folder] if self.exist else [])]:
            with _open(path, os.O_RDONLY) as file:
                os.fsync(file)

    def disk_bytes(self) -> int:
        """Bytes that the files take on disk."""
        return sum(path.stat().st_blocks * 512 for path in self._files())

    @property
    def exist(self) -> bool:
        """Whether any process has written a row."""
        return self._folder.exists()

    def _files(self) -> list[Path]:
        return sorted(self._folder.glob("*.rows"))

    @contextmanager
    def _opened(self, slot: int, flags: int) -> Iterator[int]:
        """The file of a slot; with a bound, without reading ahead."""
        with _open(self._folder / f"{slot}.rows", flags) as file:
            if self._most is not None:
                os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)
            yield file

    def _move(self, move: Callable[[memoryview, int], int], client: int, content: Tensor) -> None:
        """Read or write all bytes of a row: one call of the system may move fewer."""
        view, done = content.numpy().data, 0
        while done < self._row:
            moved = move(view[done:], client * self._row + done)
            if not moved:
                raise OSError(EIO, f"the file ends before the row of client {client}")
            done += moved

    def _make_room(self, slot: int, client: int) -> None:
        """Remember a row that is about to be touched; at the bound, drop the older half first."""
        if self._most is None:
            return
        known = (slot, client) in self._cached
        self._cached.pop((slot, client), None)
        if not known and len(self._cached) >= self._most:
            self._drop_rows(list(self._cached)[: (self._most + 1) // 2])
        self._cached[slot, client] = None

    def _drop_rows(self, rows: list[tuple[int, int]]) -> None:
        size = self._row
        for slot, group in groupby(sorted(rows), key=lambda row: row[0]):
            with self._opened(slot, os.O_RDONLY) as file:
                _drop(file, *((client * size, (client + 1) * size) for _, client in group))
        for row in rows:
            del self._cached[row]


def _drop(file: int, *parts: tuple[int, int]) -> None:
    """Let the system drop parts of a file, first byte and end, from memory; without any, all."""
    os.fdatasync(file)  # only what is on disk is dropped
    for first, end in parts or [(0, 0)]:
        start = first // PAGESIZE * PAGESIZE  # whole pages at both ends
        length = -(-end // PAGESIZE) * PAGESIZE - start
        os.posix_fadvise(file, start, length, os.POSIX_FADV_DONTNEED)


def _resident(row: int) -> int:
    """Bytes of the pages that a row touches at most."""
    return (-(-row // PAGESIZE) + 1) * PAGESIZE


@contextmanager
def _open(path: Path, flags: int) -> Iterator[int]:
    """A file descriptor; errors name the file."""
    file = os.open(path, flags, 0o666)
    try:
        yield file
    except OSError as error:
        error.filename = error.filename or str(path)
        raise
    finally:
        os.close(file)
