"""Row files: rows of bytes in sparse files, with a bound on what stays in the system's memory."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from errno import EIO
from itertools import groupby
from mmap import PAGESIZE
from pathlib import Path
from zlib import crc32

import torch
from torch import Tensor

CHECKSUM_BYTES = 16
"""At the end of a row: a crc32 and zeros, so that the next row begins aligned."""


class DamagedRowError(OSError):
    """A row whose file ends before it, or whose checksum is wrong."""

    def __init__(self, client: int, path: Path):
        message = f"the row of client {client} is damaged: add --resume to continue from whole rows"
        super().__init__(EIO, message, str(path))


class RowFiles:
    """A row of bytes for each client and slot, in one sparse file a slot that processes share.

    Files are read and written by plain calls, and not mapped: a mapped row that finds the disk full
    ends the process with SIGBUS; mapped pages count as the process's memory, and nobody can drop
    them while another process maps them; and machines that share a folder see the same content of a
    file that is opened for each access and closed after it.

    What stays in memory is the system's cache of the files. With a bound, this process remembers
    the rows that it has touched. When they reach the bound, it puts the older half on disk and lets
    the system drop them. A row ends with its checksum.

    Args:
        folder: Where the files lie; made with the first row that is written.
        row: Bytes of a row, with the last `CHECKSUM_BYTES` for the checksum.
        memory: Bytes of rows that this process may leave in memory; None leaves it to the system.

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
            DamagedRowError: If the file does not hold it as it was written.
        """
        self._make_room(slot, client)
        with self._opened(slot, os.O_RDONLY) as file:
            if not self._move(lambda part, at: os.preadv(file, [part], at), client, content):
                raise DamagedRowError(client, self._path(slot))
        if not content[-CHECKSUM_BYTES:].equal(_checksum(client, content)):
            raise DamagedRowError(client, self._path(slot))
        return content

    def write(self, slot: int, client: int, content: Tensor) -> None:
        """Write the row, (bytes,) uint8 on the CPU."""
        self._make_room(slot, client)
        self._folder.mkdir(parents=True, exist_ok=True)
        content[-CHECKSUM_BYTES:] = _checksum(client, content)
        with self._opened(slot, os.O_RDWR | os.O_CREAT) as file:
            self._move(lambda part, at: os.pwrite(file, part, at), client, content)

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

    def _path(self, slot: int) -> Path:
        return self._folder / f"{slot}.rows"

    @contextmanager
    def _opened(self, slot: int, flags: int) -> Iterator[int]:
        """The file of a slot; with a bound, without reading ahead."""
        with _open(self._path(slot), flags) as file:
            if self._most is not None:
                os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)
            yield file

    def _move(self, move: Callable[[memoryview, int], int], client: int, content: Tensor) -> bool:
        """Read or write all bytes of a row, unless the file ends before it.

        One call of the system may move fewer bytes.
        """
        view, done = content.numpy().data, 0
        while done < self._row:
            moved = move(view[done:], client * self._row + done)
            if not moved:
                return False
            done += moved
        return True

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


def _checksum(client: int, content: Tensor) -> Tensor:
    """The bytes at the end of a row. They depend on the client, so a misplaced row is damaged."""
    crc = crc32(content[:-CHECKSUM_BYTES].numpy().data, client)
    return torch.tensor([crc, 0]).view(torch.uint8)


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
