"""Rows of bytes in sparse files, of which the system's memory holds no more than it may."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from errno import EIO
from itertools import groupby
from mmap import PAGESIZE
from pathlib import Path

from torch import Tensor


class RowFiles:
    """A row of bytes for each client and place, in one sparse file a place; any number of processes share the files.

    They are read and written with plain calls, not mapped. A mapped row that finds the disk full
    ends the process with SIGBUS, a written one is an error that can be told; mapped pages count as
    the process's memory, and no one can drop them as long as another process maps them; and what is
    opened for each access and closed after it is seen alike from several machines that share a
    folder.

    What stays in memory is the system's cache of the files. With a bound, this process remembers
    the rows that it has touched, and when they fill what it may hold, it puts the older half on
    disk and lets the system drop them.

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
        self._held: dict[
            tuple[int, int], None
        ] = {}  # place and client, the one touched last at the end
        if self._most == 0:
            raise ValueError(
                f"client_state_memory leaves {memory:,} bytes for each rank on this machine, and a client's row takes "
                f"{_resident(row):,}: give that much for each rank at least"
            )
        if self._most is not None and not hasattr(os, "posix_fadvise"):
            raise ValueError(
                "this system cannot drop rows from memory (no posix_fadvise): leave client_state_memory away"
            )
        for path in (
            self._files() if self._most is not None else []
        ):  # what an earlier process left in memory
            with _open(path, os.O_RDONLY) as file:
                _let_go(file)

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
        for path in [*self._files(), *([self._folder] if self.begun else [])]:
            with _open(path, os.O_RDONLY) as file:
                os.fsync(file)

    def disk_bytes(self) -> int:
        """Bytes that the files take on disk."""
        return sum(path.stat().st_blocks * 512 for path in self._files())

    @property
    def begun(self) -> bool:
        """Whether anything has been written, by whichever process."""
        return self._folder.exists()

    def _files(self) -> list[Path]:
        return sorted(self._folder.glob("*.rows"))

    @contextmanager
    def _opened(self, slot: int, flags: int) -> Iterator[int]:
        """The file of a place, opened such that only what is asked for is read into memory."""
        with _open(self._folder / f"{slot}.rows", flags) as file:
            if self._most is not None:
                os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)
            yield file

    def _move(self, move: Callable[[memoryview, int], int], client: int, content: Tensor) -> None:
        """Read or write all bytes of a row: the system may move fewer at once."""
        view, done = content.numpy().data, 0
        while done < self._row:
            moved = move(view[done:], client * self._row + done)
            if not moved:
                raise OSError(EIO, f"the file ends before the row of client {client}")
            done += moved

    def _make_room(self, slot: int, client: int) -> None:
        """Remember a row that is about to be touched; before that, drop the older half of the others if it is time."""
        if self._most is None:
            return
        known = (slot, client) in self._held
        self._held.pop((slot, client), None)
        if not known and len(self._held) >= self._most:
            self._drop(list(self._held)[: (self._most + 1) // 2])
        self._held[slot, client] = None

    def _drop(self, rows: list[tuple[int, int]]) -> None:
        for slot, group in groupby(sorted(rows), key=lambda row: row[0]):
            with self._opened(slot, os.O_RDONLY) as file:
                _let_go(
                    file, *((client * self._row, (client + 1) * self._row) for _, client in group)
                )
        for row in rows:
            del self._held[row]


def _let_go(file: int, *parts: tuple[int, int]) -> None:
    """Let the system drop these parts of a file, first byte and end, from its memory; without any, the whole file."""
    os.fdatasync(file)  # it drops only what is on disk
    for first, end in parts or [(0, 0)]:
        whole = first // PAGESIZE * PAGESIZE  # the pages at both ends too
        os.posix_fadvise(
            file, whole, -(-end // PAGESIZE) * PAGESIZE - whole, os.POSIX_FADV_DONTNEED
        )


def _resident(row: int) -> int:
    """Bytes of the pages that a row touches at most."""
    return (-(-row // PAGESIZE) + 1) * PAGESIZE


@contextmanager
def _open(path: Path, flags: int) -> Iterator[int]:
    """A file by its number; what goes wrong with it names it."""
    file = os.open(path, flags, 0o666)
    try:
        yield file
    except OSError as error:
        error.filename = error.filename or str(path)
        raise
    finally:
        os.close(file)
