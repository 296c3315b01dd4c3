"""Client store: the states that clients keep between rounds, one row a client."""

import platform
import shutil
import weakref
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from tempfile import mkdtemp

import torch
from lightning.fabric import Fabric
from torch import Tensor

from fl_lightning.core.device import to_device_async
from fl_lightning.core.randomness import derived_seed
from fl_lightning.core.term import States
from fl_lightning.federation.row_files import DamagedRowError, RowFiles
from fl_lightning.federation.row_format import RowFormat

Retained = dict[str, tuple[int, Tensor]]
"""By the checkpoint's name: its number, from 1, and the slot of each client's row."""

MAX_RETAINED = 127
"""A slot is an int8, and one must be free."""


class ClientStore:
    """The states that clients keep between rounds: one row a client, in sparse files of all ranks.

    A row begins at its client's first visit and takes no disk before. It has several slots. A write
    goes to the first slot that no retained checkpoint refers to, so a run that is killed at any
    moment leaves the rows of every checkpoint intact. With k retained checkpoints a row takes at
    most k + 1 slots on disk, and fewer where it has not changed in between.

    All ranks make the same calls of `commit`, `retain` and `release`. A row is written by the rank
    that trains the client.

    A thread reads and writes whole rows, in the order of the calls, while clients train. Rows
    travel to and from a GPU through pinned memory, in the order of its stream, without blocking the
    program.

    Args:
        folder: Where the files lie; made with the first row.
        num_clients: Number of rows.
        states: Initial states, one dictionary a term: names, shapes and dtypes of a row.
        memory: Bytes of rows that may stay in the machine's memory, besides those in transit; None
            leaves it to the system.
        ranks: Number of ranks on this machine, each with a store of the same folder.

    Attributes:
        row: Bytes of a client's row with its checksum; 0 if the algorithm keeps nothing.
        slot: Current slot of each client's row, (num_clients,) int8; -1 if it was never visited.
        retained: The slots of each retained checkpoint, by its name, with a unique number.
    """

    def __init__(
        self,
        folder: Path,
        num_clients: int,
        states: Sequence[States],
        memory: int | None = None,
        ranks: int = 1,
    ):
        self.num_clients, self.folder, self.memory = num_clients, folder, memory
        self.slot = torch.full((num_clients,), -1, dtype=torch.int8)
        self.retained: Retained = {}
        self._last_number = 0
        self._format = RowFormat(states)
        self.row = self._format.bytes
        self._files = RowFiles(folder, self.row, None if memory is None else memory // ranks)
        devices = {state.device for term in states for state in term.values()}
        self._gpu = next((device for device in devices if device.type == "cuda"), None)
        # A new thread's CUDA calls would take memory of GPU 0, which is another rank's.
        begin = partial(torch.cuda.set_device, self._gpu) if self._gpu else None
        self._thread = ThreadPoolExecutor(1, "client-rows", begin)
        self._reads: dict[int, Future[Tensor]] = {}  # by client
        self._writes: list[Future[None]] = []
        self._buffers: list[Tensor] = []  # to write rows from

    def has(self, client: int) -> bool:
        """Whether this client has been visited before."""
        return bool(self.slot[client] >= 0)

    def prefetch(self, clients: Iterable[int]) -> None:
        """Begin to read the rows of these clients, in the order of their visits."""
        for client in clients if self.row else ():
            if client not in self._reads and self.has(client):
                self._reads[client] = self._begin_read(client)

    def _begin_read(self, client: int) -> "Future[Tensor]":
        row = torch.empty(self.row, dtype=torch.uint8, pin_memory=self._gpu is not None)
        return self._thread.submit(self._files.read, int(self.slot[client]), client, row)

    def read(self, client: int, device: torch.device) -> list[States]:
        """The client's states, one dictionary a term, copied to the device."""
        if not self.row:
            return [{} for _ in self._format.terms]
        row = (self._reads.pop(client, None) or self._begin_read(client)).result()
        return self._format.views(to_device_async(row, device))

    def write(self, client: int, states: Sequence[States]) -> None:
        """Begin to write the client's row, which counts from the next `commit` on.

        States that the row does not hold are ignored. All may change after the call. A failure is
        raised by `wait_for_writes`.
        """
        if not self.row:
            return
        self._reads.pop(client, None)  # out of date
        pinned = self._gpu is not None
        new = partial(torch.zeros, self.row, dtype=torch.uint8, pin_memory=pinned)
        row = self._buffers.pop() if self._buffers else new()
        for term, values in zip(self._format.views(row), states, strict=True):
            for name, state in term.items():
                state.copy_(values[name].detach(), non_blocking=pinned)
        copied = None
        if pinned:
            stream = torch.cuda.current_stream(self._gpu)
            copied = stream.record_event(torch.cuda.Event(blocking=True))
        slot = int(self._free_slots(torch.tensor([client])))
        files, buffers = self._files, self._buffers  # the thread must not keep the store alive

        def finish() -> None:
            if copied is not None:
                copied.synchronize()
            files.write(slot, client, row)
            buffers.append(row)

        self._writes.append(self._thread.submit(finish))

    def wait_for_writes(self, but: int = 0) -> None:
        """Wait until written rows, `but` for the latest, are in their files for every rank to read.

        An OSError of a write is raised here.
        """
        first = max(0, len(self._writes) - but)
        waited, self._writes = self._writes[:first], self._writes[first:]
        errors = [write.exception() for write in waited]  # waits for all of them
        for error in filter(None, errors):
            raise error

    def commit(self, clients: Sequence[int]) -> None:
        """Make the rows written for these clients count. All ranks call it once a round."""
        self.wait_for_writes()
        self._reads.clear()
        cohort = torch.tensor(clients, dtype=torch.long)
        self.slot[cohort] = self._free_slots(cohort)

    def _free_slots(self, clients: Tensor) -> Tensor:
        """The first slot of each client's row that no checkpoint refers to."""
        candidates = torch.arange(len(self.retained) + 1, dtype=torch.int8)[:, None]
        taken = torch.zeros(len(candidates), len(clients), dtype=torch.bool)
        for _, slot in self.retained.values():
            taken |= candidates == slot[clients]
        return taken.to(torch.int8).argmin(0).to(torch.int8)  # the first that is not taken

    def damage(self) -> str:
        """The first damage of a row, of which all are read; an empty string if they are whole."""
        row = torch.empty(self.row, dtype=torch.uint8)
        for client in (self.slot >= 0).nonzero().flatten().tolist() if self.row else ():
            try:
                self._files.read(int(self.slot[client]), client, row)
            except DamagedRowError as error:
                return f"the row of client {client} in {error.filename}"
        return ""

    def disk_bytes(self) -> int:
        """Bytes that the rows take on disk now."""
        self.wait_for_writes()
        return self._files.disk_bytes()

    def flush(self) -> None:
        """Put the rows of this machine on disk, before a checkpoint refers to them."""
        self.wait_for_writes()
        self._files.flush()

    def retain(self, checkpoint: str = "last") -> None:
        """Keep the current rows for a checkpoint, in place of those of the same name.

        Raises:
            ValueError: If there are too many.
        """
        if len({*self.retained, checkpoint}) > MAX_RETAINED:
            raise ValueError(
                f"client states of at most {MAX_RETAINED} checkpoints can be retained: release "
                "another first"
            )
        self.wait_for_writes()
        self._last_number += 1
        self.retained[checkpoint] = self._last_number, self.slot.clone()

    def release(self, checkpoint: str) -> None:
        """Let later rounds overwrite the rows of this checkpoint."""
        self.retained.pop(checkpoint, None)

    def is_retained(self, slot: Tensor, retained: Retained | None = None) -> bool:
        """Whether the rows in these slots stay as they are, or there are none.

        For slots of the past, `retained` is the attribute at that time: they may hold other rows
        now.
        """
        if not self.row or bool((slot < 0).all()):
            return True
        then = self.retained if retained is None else retained
        numbers = {number for number, _ in then.values()}
        return any(n in numbers and slot.equal(kept) for n, kept in self.retained.values())

    def restore(self, slot: Tensor, retained: Retained) -> None:
        """Return to the rows of a checkpoint, with `slot` and `retained` as they were.

        A store that has rows keeps its own `retained`.

        Raises:
            ValueError: If the rows are not there, or this store may have overwritten them.
        """
        if self.row and not self._files.exist and bool((slot >= 0).any()):
            raise ValueError(
                f"the checkpoint refers to client states, but there are none in {self.folder}: "
                "resume in the folder of the run"
            )
        in_use = bool(self.retained) or bool((self.slot >= 0).any())
        if in_use and not self.is_retained(slot, retained):
            raise ValueError(
                "later rounds may have written over the clients' states of this checkpoint: call "
                "federation.store.retain(name) before each state_dict(), with a name for each"
            )
        with suppress(Exception):  # writes in progress no longer count
            self.wait_for_writes()
        self._reads.clear()
        self.slot = slot.to(torch.int8).clone()
        if not in_use:
            self.retained = dict(retained)
            self._last_number = max((number for number, _ in retained.values()), default=0)


def open_store(
    fabric: Fabric,
    folder: Path | None,
    num_clients: int,
    states: Sequence[States],
    memory: int | None = None,
) -> ClientStore:
    """The store of a run. All ranks call it and use the folder of the first.

    Without a folder that is a temporary one, removed with the first rank's store.
    """
    temporary = None
    if folder is None and fabric.is_global_zero:
        temporary = Path(mkdtemp(prefix="fl_lightning-"))
    folder = Path(fabric.broadcast(str(folder or f"{temporary}/rows")))
    ranks = 1 if memory is None else _ranks_here(fabric)
    store = ClientStore(folder, num_clients, states, memory, ranks)
    if temporary:
        weakref.finalize(store, shutil.rmtree, temporary, ignore_errors=True)
    return store


def _ranks_here(fabric: Fabric) -> int:
    """The number of ranks on this machine."""
    names = torch.zeros(fabric.world_size, dtype=torch.int64, device=fabric.device)
    names[fabric.global_rank] = derived_seed(0, platform.node())
    fabric.all_reduce(names, reduce_op="sum")
    return int((names == names[fabric.global_rank]).sum())
