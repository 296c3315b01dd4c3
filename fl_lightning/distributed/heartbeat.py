"""Heartbeat file: each rank publishes its process id and current clients, others detect its end."""

import os
import secrets
import socket
import sys
import threading
import weakref
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from zlib import crc32

import torch
from lightning.fabric import Fabric

from fl_lightning.distributed.staged_loading import load_rank_zero_first
from fl_lightning.errors import RankLostError, first_sentence

RUN, MACHINE, PROCESS, COUNT, CLIENTS = range(5)
"""Columns of a rank's line; the clients stand from the last one on."""

DONE, FAILED = 0, -1
"""Process ids of a rank whose rounds are over, and of one that left them by an error."""

POLL_S, MISSES = 0.5, 3
"""Seconds between two looks at the others, and how many in a row must miss a rank."""


class Heartbeat:
    """A file with one line of integers a rank; a process that is killed leaves its line behind.

    A line holds a number that identifies the run, the rank's machine and process id, and the
    clients that it is training.

    Args:
        path: The file, in a folder that all ranks see.
        ranks: The number of ranks.
        rank: The rank that this process writes for.
        width: The largest number of clients that train in parallel.
        run: A number that no earlier run in this folder had.
    """

    def __init__(self, path: Path, ranks: int, rank: int, width: int, run: int = 0):
        self.ranks, self.rank, self._columns = ranks, rank, CLIENTS + width
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        weakref.finalize(self, os.close, self._file)
        self._write(RUN, run, _machine(), os.getpid(), 0, *[0] * width)

    def _write(self, column: int, *values: int) -> None:
        place = 8 * (self.rank * self._columns + column)
        os.pwrite(self._file, array("q", values).tobytes(), place)

    def _line(self, rank: int) -> list[int]:
        size = 8 * self._columns
        return array("q", os.pread(self._file, size, rank * size).ljust(size, b"\0")).tolist()

    def set_clients(self, clients: Sequence[int]) -> None:
        """Publish the clients that this rank is training."""
        self._write(COUNT, len(clients), *clients)

    def of(self, rank: int) -> str:
        """Describe a rank: its number, and the clients that it is or was training."""
        line = self._line(rank)
        clients = line[CLIENTS : CLIENTS + line[COUNT]]
        if not clients:
            return f"rank {rank}"
        plural = "s" if len(clients) > 1 else ""
        return f"rank {rank}, training client{plural} {', '.join(map(str, clients))}"

    @contextmanager
    def watching(self, position: Callable[[], str]) -> Iterator[None]:
        """End this process with a message when another rank of this machine ends early.

        The sums of the round would miss that rank, and an all-reduce may wait for it for long. The
        end of a rank on another machine shows as a broken connection of the all-reduce.
        `position` gives the round that is being run.
        """
        if self.ranks == 1:
            yield
            return
        over = threading.Event()
        watcher = threading.Thread(target=self._watch, args=(over, position), daemon=True)
        self._write(PROCESS, os.getpid())
        watcher.start()
        try:
            yield
            self._write(PROCESS, DONE)
        except BaseException:
            self._write(PROCESS, FAILED)  # the process may live on: with NCCL it waits for others
            raise
        finally:
            over.set()
            watcher.join()

    @contextmanager
    def naming_lost_rank(self, position: Callable[[], str]) -> Iterator[None]:
        """Turn the error of a broken collective into a RankLostError that names the other ranks."""
        try:
            yield
        except RuntimeError as error:
            if self.ranks == 1:
                raise
            training = [rank for rank in range(self.ranks) if self._line(rank)[COUNT]]
            others = "; ".join(self.of(rank) for rank in training if rank != self.rank)
            missing = f"; not done: {others}" if others else ", so its clients are missing"
            message = f"{position()}: another rank ended{missing} ({first_sentence(error)})"
            raise RankLostError(message) from error

    def _watch(self, over: threading.Event, position: Callable[[], str]) -> None:
        machines = [self._line(rank)[MACHINE] for rank in range(self.ranks)]
        misses = {rank: 0 for rank, it in enumerate(machines) if it == machines[self.rank]}
        while not over.wait(POLL_S):
            misses = {rank: (n + 1) * self._has_ended(rank) for rank, n in misses.items()}
            ended = [rank for rank, n in misses.items() if n == MISSES]
            if not ended or over.is_set():
                continue
            if self.rank == min(rank for rank, n in misses.items() if not n):  # one of them says it
                named = "; ".join(map(self.of, ended))
                message = f"error: {position()}: another rank ended: {named}"
                print(message, file=sys.stderr, flush=True)
            os._exit(2)

    def _has_ended(self, rank: int) -> bool:
        """Whether a rank has ended or failed before its rounds were over."""
        process = self._line(rank)[PROCESS]
        return process == FAILED or (process != DONE and not _is_alive(process))


def rendezvous(fabric: Fabric, path: Path, width: int, sharing: bool = True) -> Heartbeat:
    """The heartbeat file, once all ranks have written their lines.

    Ranks that are `sharing` the clients' states must see the same folder.

    Raises:
        ValueError: On every rank, if they share states but not the folder.
    """
    ranks, rank = fabric.world_size, fabric.global_rank
    if ranks == 1:
        return Heartbeat(Path(os.devnull), ranks, rank, width)
    run = fabric.broadcast(secrets.randbits(62))  # lines of an earlier run do not count
    heartbeat = load_rank_zero_first(fabric, lambda: Heartbeat(path, ranks, rank, width, run))
    unseen = torch.zeros(ranks, ranks, device=fabric.device)
    unseen[rank, [other for other in range(ranks) if heartbeat._line(other)[RUN] != run]] = 1
    fabric.all_reduce(unseen, reduce_op="sum")
    if sharing and unseen.any():
        reader, writer = unseen.nonzero()[0].tolist()
        raise ValueError(
            f"rank {reader} does not see what rank {writer} wrote in {path.parent}: "
            "give all machines one shared folder"
        )
    return heartbeat


def _machine() -> int:
    """A number shared by processes that see each other's process ids."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:  # not Linux
        boot, namespace = socket.gethostname(), ""
    return crc32(f"{boot}{namespace}".encode())


def _is_alive(process: int) -> bool:
    """Whether a process runs; a zombie, which its parent has not waited for, does not."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's process
        return True
    with suppress(OSError):  # not Linux, or it ends now, which the next look will show
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return True
