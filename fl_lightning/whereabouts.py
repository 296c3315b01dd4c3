"""Who is training whom, told to the other ranks of a run, which notice when one of them is gone."""

import os
import socket
import sys
import threading
import time
import weakref
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from zlib import crc32

from lightning.fabric import Fabric

GLANCE, GLANCES = 0.5, 3
"""Seconds between two looks at the others, and how many in a row must miss a rank: it may be ending as this one is."""

SILENCE = 45.0
"""Seconds without a beat after which a rank of another machine, whose processes cannot be seen, counts as ended."""


class Whereabouts:
    """A line for each rank in a file that all of them read: a process that is killed leaves its line behind.

    A line holds the rank's machine and process (0 once its rounds are over), a number that goes up as long as it lives,
    and the clients that it is training.

    Args:
        path: The file, in a folder that all ranks see.
        ranks: How many ranks there are.
        rank: Which of them this is.
        width: How many clients train at once.
    """

    def __init__(self, path: Path, ranks: int, rank: int, width: int):
        self.ranks, self.rank, self._columns = ranks, rank, 4 + width
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        weakref.finalize(self, os.close, self._file)
        self._put(0, _machine(), os.getpid(), 0, 0, *[0] * width)

    def _put(self, column: int, *values: int) -> None:
        os.pwrite(self._file, array("q", values).tobytes(), 8 * (self.rank * self._columns + column))

    def _line(self, rank: int) -> list[int]:
        size = 8 * self._columns
        return array("q", os.pread(self._file, size, rank * size).ljust(size, b"\0")).tolist()

    def note(self, clients: Sequence[int]) -> None:
        """This rank begins to train these clients; none when it is done."""
        self._put(3, len(clients), *clients)

    def of(self, rank: int) -> str:
        """The rank, and whom it is training, or was when it was killed."""
        clients = self._line(rank)[4 : 4 + self._line(rank)[3]]
        plural = "s" * (len(clients) > 1)
        return f"rank {rank}" + f", training client{plural} {', '.join(map(str, clients))}" * bool(clients)

    def of_others(self) -> str:
        """The other ranks that are training, each with whom; an empty string if none is."""
        return "; ".join(self.of(rank) for rank in range(self.ranks) if rank != self.rank and self._line(rank)[3])

    @contextmanager
    def watching(self, where: Callable[[], str]) -> Iterator[None]:
        """End this process, with a sentence, when another rank ends before its rounds are over.

        The sums of the round will miss that rank, and who waits for it in an all-reduce may do so for long.

        Args:
            where: Says which round is being run.
        """
        over = threading.Event()

        def watch() -> None:
            here = {rank: self._line(rank)[0] == self._line(self.rank)[0] for rank in range(self.ranks)}
            missed = {rank: 0 for rank in here if here[rank]}
            heard = {rank: (-1, time.monotonic()) for rank in here if not here[rank]}
            for beat in count(1):
                if over.wait(GLANCE):
                    return
                self._put(2, beat)
                missed = {rank: (missed[rank] + 1) * self._gone(rank) for rank in missed}
                heard = {rank: self._hear(rank, *last) for rank, last in heard.items()}
                gone = [rank for rank in missed if missed[rank] == GLANCES]
                gone += [rank for rank, (_, since) in heard.items() if time.monotonic() - since > SILENCE]
                if gone and not over.is_set():
                    if self.rank == min(rank for rank in missed if not missed[rank]):  # one of them says it
                        told = "; ".join(map(self.of, gone))
                        print(f"error: {where()}: another rank ended: {told}", file=sys.stderr, flush=True)
                    os._exit(2)

        watcher = threading.Thread(target=watch, daemon=True, name="rank-watch")
        if self.ranks > 1:
            self._put(1, os.getpid())
            watcher.start()
        try:
            yield
            self._put(1, 0)
        finally:
            over.set()
            if self.ranks > 1:
                watcher.join()

    def _hear(self, rank: int, last: int, since: float) -> tuple[int, float]:
        """A rank's last beat, and since when it is that; before its rounds and after them it need not beat."""
        _, process, beat, *_ = self._line(rank)
        return (last, since) if process and beat and beat == last else (beat, time.monotonic())

    def _gone(self, rank: int) -> bool:
        """Whether a rank of this machine has ended, though its rounds are not over."""
        process = self._line(rank)[1]
        return process > 0 and not _is_alive(process)


def meet(fabric: Fabric, path: Path, width: int) -> Whereabouts:
    """The whereabouts of all ranks, once all are there; a rank alone tells nobody."""
    file = path if fabric.world_size > 1 else Path(os.devnull)
    whereabouts = Whereabouts(file, fabric.world_size, fabric.global_rank, width)
    fabric.barrier()
    return whereabouts


def _machine() -> int:
    """A number that is the same for processes that see each other's process ids."""
    try:
        boot, ids = Path("/proc/sys/kernel/random/boot_id").read_text(), os.readlink("/proc/self/ns/pid")
    except OSError:  # not Linux
        boot, ids = socket.gethostname(), ""
    return crc32(f"{boot}{ids}".encode())


def _is_alive(process: int) -> bool:
    """Whether a process is at work; one that has ended and waits to be counted by its parent is not."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # somebody else's
        return True
    with suppress(OSError):  # not Linux, or it ends just now, which the next look will show
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return True
