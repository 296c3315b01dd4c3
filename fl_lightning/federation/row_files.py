"""Row files: the tensors of each client and slot, in one sparse file a slot."""

from errno import EIO
from pathlib import Path
from zlib import crc32

from torch.utils._pytree import tree_leaves

from fl_lightning.core.device import bytes_of
from fl_lightning.core.term import States
from fl_lightning.files import sync

Row = list[States]
"""The states of a client, one dictionary a term. Nobody changes a row."""

CHECKSUM_BYTES = 4
"""At the end of a row. It begins with the client's number, so a misplaced row is damaged."""


class DamagedRowError(OSError):
    """A row whose file ends before it, or whose checksum is wrong."""

    def __init__(self, client: int, path: Path):
        message = f"the states of client {client} are damaged: add --resume"
        super().__init__(EIO, message, str(path))


class RowFiles:
    """A row of bytes for each client and slot, in sparse files that processes share.

    A file is opened for each access and closed after it, so that machines that share the folder see
    the same content. It is not mapped: a mapped file that finds the disk full ends the process.

    Args:
        folder: Where the files lie; made with the first row.
        row: Bytes of a row without its checksum.
    """

    def __init__(self, folder: Path, row: int):
        self._folder, self._stride = folder, row + CHECKSUM_BYTES
        self._unsynced = set[Path]()

    def read(self, slot: int, client: int, row: Row) -> Row:
        """Read a row into these tensors on the CPU.

        Raises:
            DamagedRowError: If the file does not hold it as it was written.
        """
        crc, path = client, self._path(slot)
        with path.open("rb") as file:
            file.seek(client * self._stride)
            for tensor in tree_leaves(row):
                content = bytes_of(tensor)
                file.readinto(content)
                crc = crc32(content, crc)
            if file.read(CHECKSUM_BYTES) != crc.to_bytes(CHECKSUM_BYTES, "little"):
                raise DamagedRowError(client, path)
        return row

    def write(self, slot: int, client: int, row: Row) -> None:
        """Write a row of tensors on the CPU."""
        self._folder.mkdir(parents=True, exist_ok=True)
        crc, path = client, self._path(slot)
        self._unsynced.add(path)
        path.touch()
        with path.open("r+b") as file:
            file.seek(client * self._stride)
            for tensor in tree_leaves(row):
                content = bytes_of(tensor)
                file.write(content)
                crc = crc32(content, crc)
            file.write(crc.to_bytes(CHECKSUM_BYTES, "little"))

    def flush(self) -> None:
        """Put the rows that this process has written, and the files' names, on disk."""
        for path in (*sorted(self._unsynced), self._folder) if self._unsynced else ():
            sync(path)
        self._unsynced.clear()

    def disk_bytes(self) -> int:
        """Bytes that the files take on disk."""
        return sum(path.stat().st_blocks * 512 for path in self._folder.glob("*.rows"))

    def _path(self, slot: int) -> Path:
        return self._folder / f"{slot}.rows"
