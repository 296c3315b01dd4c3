"""Who is training whom, told to the other ranks of a run, which notice when one of them is gone."""

import os
import secrets
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

import torch
from lightning.fabric import Fabric

MACHINE, PROCESS, BEAT, MEETING, TRAINING, CLIENTS = range(6)
"""Columns of a rank's line; from the last one on stand the clients."""

FAILED = -1
"""In place of a process that has left its rounds by an error."""

GLANCE, GLANCES = 0.5, 3
"""Seconds between two looks at the others, and how many in a row must miss a rank: it may be ending as this one is."""

SILENCE = 45.0
"""Seconds without a beat after which a rank of another machine, whose processes cannot be seen, counts as ended."""


class Heartbeat:
    """A line for each rank in a file that all of them read: a process that is killed leaves its line behind.

    A line holds the rank's machine and process (0 once its rounds are over, -1 once they have
    failed), a number that goes up as long as it lives, the number of the run's meeting, and how
    many clients it is training and which.

    Args:
        path: The file, in a folder that all ranks see.
        ranks: How many ranks there are.
        rank: Which of them this is.
        width: How many clients train at once.
        meeting: A number that no earlier run in this folder had.
    """

    def __init__(self, path: Path, ranks: int, rank: int, width: int, meeting: int = 0):
        self.ranks, self.rank, self._columns, self._meeting = ranks, rank, CLIENTS + width, meeting
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        weakref.finalize(self, os.close, self._file)
        self._put(MACHINE, _machine(), os.getpid(), 0, meeting, 0, *[0] * width)

    def _put(self, column: int, *values: int) -> None:
        os.pwrite(
            self._file, array("q", values).tobytes(), 8 * (self.rank * self._columns + column)
        )

    def _line(self, rank: int) -> list[int]:
        size = 8 * self._columns
        return array("q", os.pread(self._file, size, rank * size).ljust(size, b"\0")).tolist()

    def note(self, clients: Sequence[int]) -> None:
        """This rank begins to train these clients; none when it is done."""
        self._put(TRAINING, len(clients), *clients)

    def of(self, rank: int) -> str:
        """The rank, and whom it is training, or was when it was killed."""
        line = self._line(rank)
        clients = line[CLIENTS : CLIENTS + line[TRAINING]]
        plural = "s" * (len(clients) > 1)
        return f"rank {rank}" + f", training client{plural} {', '.join(map(str, clients))}" * bool(
            clients
        )

    def of_others(self) -> str:
        """The other ranks that are training, each with whom; an empty string if none is."""
        return "; ".join(
            self.of(rank)
            for rank in range(self.ranks)
            if rank != self.rank and self._line(rank)[TRAINING]
        )

    def unseen(self) -> list[int]:
        """The ranks whose lines are not to be seen here, though all have been written: their folder is another."""
        return [rank for rank in range(self.ranks) if self._line(rank)[MEETING] != self._meeting]

    @contextmanager
    def watching(self, where: Callable[[], str]) -> Iterator[None]:
        """End this process, with a sentence, when another rank ends before its rounds are over.

        The sums of the round will miss that rank, and who waits for it in an all-reduce may do so
        for long.

        Args:
            where: Says which round is being run.
        """
        over = threading.Event()

        def watch() -> None:
            here = {
                rank: self._line(rank)[MACHINE] == self._line(self.rank)[MACHINE]
                for rank in range(self.ranks)
            }
            missed = {rank: 0 for rank in here if here[rank]}
            heard = {rank: (-1, time.monotonic()) for rank in here if not here[rank]}
            for beat in count(1):
                if over.wait(GLANCE):
                    return
                self._put(BEAT, beat)
                missed = {rank: (missed[rank] + 1) * self._gone(rank) for rank in missed}
                heard = {rank: self._hear(rank, *last) for rank, last in heard.items()}
                gone = [rank for rank in missed if missed[rank] == GLANCES]
                gone += [
                    rank for rank, (_, since) in heard.items() if time.monotonic() - since > SILENCE
                ]
                if gone and not over.is_set():
                    if self.rank == min(
                        rank for rank in missed if not missed[rank]
                    ):  # one of them says it
                        told = "; ".join(map(self.of, gone))
                        print(
                            f"error: {where()}: another rank ended: {told}",
                            file=sys.stderr,
                            flush=True,
                        )
                    os._exit(2)

        watcher = threading.Thread(target=watch, daemon=True, name="rank-watch")
        if self.ranks > 1:
            self._put(PROCESS, os.getpid())
            watcher.start()
        try:
            yield
            self._put(PROCESS, 0)
        except BaseException:
            self._put(
                PROCESS, FAILED
            )  # it may live on for long: with NCCL it waits for the others then
            raise
        finally:
            over.set()
            if self.ranks > 1:
                watcher.join()

    def _hear(self, rank: int, last: int, since: float) -> tuple[int, float]:
        """A rank's last beat, and since when it is that; before its rounds and after them it need not beat."""
        line = self._line(rank)
        silent = line[PROCESS] and line[BEAT] and line[BEAT] == last
        return (last, since) if silent else (line[BEAT], time.monotonic())

    def _gone(self, rank: int) -> bool:
        """Whether a rank of this machine has ended or failed, though its rounds are not over."""
        process = self._line(rank)[PROCESS]
        return process == FAILED or (process > 0 and not _is_alive(process))


def meet(fabric: Fabric, path: Path, width: int, sharing: bool = True) -> Heartbeat:
    """The whereabouts of all ranks, once all are there; a rank alone tells nobody.

    Args:
        fabric: A launched Fabric.
        path: Where they are written.
        width: How many clients train at once.
        sharing: Whether the ranks share clients' states, beside that file.

    Raises:
        ValueError: On every rank, if they share states and one does not see what another wrote.
    """
    ranks, rank = fabric.world_size, fabric.global_rank
    if ranks == 1:
        return Heartbeat(Path(os.devnull), ranks, rank, width)
    meeting = fabric.broadcast(secrets.randbits(62))  # lines of an earlier run do not count
    failed: OSError | None = None
    try:
        whereabouts = Heartbeat(path, ranks, rank, width, meeting)
    except OSError as error:  # raised when no rank waits for this one any more
        failed = error
    fabric.barrier()
    unseen = torch.zeros(ranks, ranks, device=fabric.device)
    unseen[rank, [] if failed else whereabouts.unseen()] = 1
    fabric.all_reduce(unseen, reduce_op="sum")
    if failed:
        raise failed
    for reader, writer in unseen.nonzero().tolist() if sharing else ():
        raise ValueError(
            f"rank {reader} does not see what rank {writer} wrote in {path.parent}: give all machines one folder that "
            "they share"
        )
    return whereabouts


def _machine() -> int:
    """A number that is the same for processes that see each other's process ids."""
    try:
        boot, ids = (
            Path("/proc/sys/kernel/random/boot_id").read_text(),
            os.readlink("/proc/self/ns/pid"),
        )
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
