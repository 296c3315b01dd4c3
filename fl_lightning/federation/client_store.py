"""Client store: the states that clients keep between rounds, in memory in front of files."""

import shutil
import weakref
from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from tempfile import mkdtemp

import torch
from lightning.fabric import Fabric
from torch import Tensor
from torch.utils._pytree import tree_leaves

from fl_lightning.core.term import States
from fl_lightning.distributed.memory import available_memory
from fl_lightning.errors import UserError
from fl_lightning.federation.row_files import DamagedRowError, Row, RowFiles

Retained = dict[str, tuple[int, Tensor]]
"""By the checkpoint's name: its number, from 1, and the slot of each client's row."""

UNASKED = 2**24
"""Bytes of rows that stay in memory without asking the system what is free."""

BLOCK = 4096
"""Smallest unit that a file system allocates, in bytes."""


class ClientStore:
    """The states that clients keep between rounds: one row a client.

    Rows stay in this process's memory while they fit, pinned for a GPU. The least recently used
    ones go to files, and `retain` writes those that have changed since. A thread reads and writes
    the files while clients train. With several ranks each row is also written at once, since
    another rank may read it next.

    A row has a place in several files, its slots. It is written to the first slot that no retained
    checkpoint refers to, so a run that is killed at any moment leaves the rows of every checkpoint
    intact. With k retained checkpoints a row takes at most k + 1 slots.

    All ranks make the same calls of `commit`, `retain` and `release`. A row is written by the rank
    that trains the client.

    Args:
        folder: Where the files lie; made with the first row.
        num_clients: Number of rows.
        states: Initial states, one dictionary a term: names, shapes, dtypes and device of a row.
        memory: Bytes of rows that this machine may keep in memory, besides those in transit; None
            is a quarter of what is free, at least `UNASKED`. The system is asked as rows come,
            since other jobs take their part too.
        ranks: Number of ranks on this machine, which share the memory.
        shared: Whether other ranks, here or elsewhere, have stores of the same folder.

    Attributes:
        row: Bytes of a client's states; 0 if the algorithm keeps nothing.
        slot: Current slot of each client's row, (num_clients,) int16; -1 if it was never visited.
        retained: The slots of each retained checkpoint, by its name, with a unique number.
    """

    def __init__(
        self,
        folder: Path,
        num_clients: int,
        states: Sequence[States],
        memory: int | None = None,
        ranks: int = 1,
        shared: bool = False,
    ):
        self.num_clients, self.folder = num_clients, folder
        self.slot = torch.full((num_clients,), -1, dtype=torch.int16)
        self.retained: Retained = {}
        self._last_number = 0
        self._like = [{name: s.to("meta") for name, s in term.items()} for term in states]
        tensors: list[Tensor] = tree_leaves([*states])
        self.row = sum(state.nbytes for state in tensors)
        self._gpu = next((t.device for t in tensors if t.device.type == "cuda"), None)
        held = self.row
        if self._gpu:  # PyTorch rounds pinned memory up to powers of two
            held = sum(1 << (state.nbytes - 1).bit_length() for state in tensors if state.nbytes)
        self._held, self._ranks, self._shared = max(1, held), ranks, shared
        self._grows, least = memory is None, UNASKED if memory is None else memory
        self._most = least // (ranks * self._held)
        self._files = RowFiles(folder, self.row)
        # A new thread's CUDA calls would take memory of GPU 0, which is another rank's.
        begin = partial(torch.cuda.set_device, self._gpu) if self._gpu else None
        self._thread = ThreadPoolExecutor(1, "client-rows", begin)
        self._rows: dict[int, Row] = {}  # current ones in memory, the last used at the end
        self._new: dict[int, Row] = {}  # written since the last commit
        self._unsaved = set[int]()  # clients whose current row is in no file
        self._reads: dict[int, Future[Row]] = {}
        self._writes = deque[Future[None]]()

    def has(self, client: int) -> bool:
        """Whether this client has been visited before."""
        return bool(self.slot[client] >= 0)

    def prefetch(self, clients: Iterable[int]) -> None:
        """Begin to read those of the clients' rows that are not in memory."""
        for client in clients if self.row else ():
            if client in self._rows:
                self._rows[client] = self._rows.pop(client)  # keep it until its visit
            elif client not in self._reads and self.has(client):
                where = int(self.slot[client]), client, self._empty()
                self._reads[client] = self._thread.submit(self._files.read, *where)

    def read(self, client: int, device: torch.device) -> Row:
        """The client's states on the device, not to be changed in place."""
        if self.row:
            self.prefetch([client])
            row = self._reads.pop(client).result() if client in self._reads else self._rows[client]
            self._rows[client] = row
            self._make_room()
        else:
            row = self._empty()  # states of no numbers
        return [{name: s.to(device, non_blocking=True) for name, s in t.items()} for t in row]

    def write(self, client: int, states: Sequence[States]) -> None:
        """Replace the client's row by a copy of these states, from the next `commit` on.

        States that the row does not hold are ignored.
        """
        if not self.row:
            return
        row = self._new[client] = self._empty()
        for term, values in zip(row, states, strict=True):
            for name, state in term.items():
                state.copy_(values[name].detach(), non_blocking=self._gpu is not None)
        if self._shared:
            self._save(self._free_slots([client]), client, row)
        self._make_room()

    def _empty(self) -> Row:
        pinned = self._gpu is not None
        return [
            {k: torch.empty(s.shape, dtype=s.dtype, pin_memory=pinned) for k, s in term.items()}
            for term in self._like
        ]

    def _make_room(self) -> None:
        """Let the least recently used rows go to their files."""
        count = len(self._rows) + len(self._new)
        if self._grows and count > self._most:
            wanted = count + count // 8  # so that the system is seldom asked
            rest = available_memory() // (3 * self._ranks)  # a third of the rest: a quarter of all
            self._grows = wanted * self._held <= rest
            self._most = wanted if self._grows else self._most
        while len(self._rows) + len(self._new) > self._most:
            if self._rows:
                client = next(iter(self._rows))
                row = self._rows.pop(client)
                if client in self._unsaved:
                    self._unsaved.remove(client)
                    self._save(self.slot[client], client, row)
            else:
                client = next(iter(self._new))
                row = self._new.pop(client)
                if not self._shared:
                    self._save(self._free_slots([client]), client, row)

    def _save(self, slot: Tensor, client: int, row: Row) -> None:
        """Begin to write a row to its file."""
        if self._gpu:  # the thread first waits until the row is copied
            stream = torch.cuda.current_stream(self._gpu)
            copied = stream.record_event(torch.cuda.Event(blocking=True))
            self._thread.submit(copied.synchronize)
        self._writes.append(self._thread.submit(self._files.write, int(slot), client, row))

    def wait_for_writes(self, but: int = 0) -> None:
        """Wait until rows, `but` for the latest, are in their files for every rank to read.

        An OSError of a write is raised here, and again by every call until a `restore`.
        """
        while len(self._writes) > but:
            self._writes[0].result()
            self._writes.popleft()

    def commit(self, clients: Sequence[int]) -> None:
        """Make the rows written for these clients count. All ranks call it once a round."""
        self.wait_for_writes()
        self.slot[list(clients)] = self._free_slots(clients)
        for client in clients:
            self._rows.pop(client, None)
            self._unsaved.discard(client)
            if client in self._new:
                self._rows[client] = self._new[client]
                if not self._shared:
                    self._unsaved.add(client)
        self._new.clear()
        self._reads.clear()

    def _free_slots(self, clients: Sequence[int]) -> Tensor:
        """The first slot of each client's row that no checkpoint refers to."""
        candidates = torch.arange(len(self.retained) + 1)[:, None]
        taken = torch.zeros(len(candidates), len(clients), dtype=torch.bool)
        for _, slot in self.retained.values():
            taken |= candidates == slot[list(clients)]
        return taken.int().argmin(0).to(self.slot)  # the first that is not taken

    def damage(self) -> str:
        """The first damage of a row, of which all are read; an empty string if they are whole."""
        row = self._empty()
        for client in (self.slot >= 0).nonzero().flatten().tolist() if self.row else ():
            try:
                self._files.read(int(self.slot[client]), client, row)
            except (DamagedRowError, FileNotFoundError) as error:
                return f"the states of client {client} in {error.filename} are damaged"
        return ""

    def disk_bytes(self) -> int:
        """Bytes that the rows take on disk now."""
        return self._files.disk_bytes()

    def most_disk_bytes(self, visits: int, checkpoints: int) -> int:
        """A bound on the bytes on disk after further visits, with so many checkpoints kept.

        Each visit writes at most one row, and a row has a slot for each checkpoint and one more.
        """
        used, row = self.disk_bytes(), self.row + 2 * BLOCK  # it shares the blocks at its ends
        every_slot = (checkpoints + 1) * self.num_clients * (self.row + BLOCK)
        return max(used, min(every_slot, used + visits * row)) if self.row else 0

    def retain(self, checkpoint: str = "last") -> None:
        """Put the current rows on disk and keep them, in place of rows of the same name."""
        for client in sorted(self._unsaved):
            self._save(self.slot[client], client, self._rows[client])
        self._unsaved.clear()
        self.wait_for_writes()
        self._files.flush()
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
            UserError: If the rows are not there, or this store may have overwritten them.
        """
        if self.row and not self.folder.exists() and bool((slot >= 0).any()):
            raise UserError(
                f"the checkpoint refers to client states, but there are none in {self.folder}: "
                "resume in the folder of the run"
            )
        in_use = bool(self.retained) or bool((self.slot >= 0).any())
        if in_use and not self.is_retained(slot, retained):
            raise UserError(
                "later rounds may have written over the clients' states of this checkpoint: call "
                "federation.store.retain(name) before each state_dict(), with a name for each"
            )
        self._thread.submit(int).result()  # writes in progress end, and count no longer
        for rows in (self._rows, self._new, self._unsaved, self._reads, self._writes):
            rows.clear()
        self.slot = slot.to(self.slot).clone()
        if not in_use:
            self.retained = {name: (n, kept.to(self.slot)) for name, (n, kept) in retained.items()}
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
    here = getattr(fabric.strategy, "num_processes", 1)
    store = ClientStore(folder, num_clients, states, memory, here, fabric.world_size > 1)
    if temporary:
        weakref.finalize(store, shutil.rmtree, temporary, ignore_errors=True)
    return store
