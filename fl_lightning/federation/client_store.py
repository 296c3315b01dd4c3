"""What each client keeps between rounds."""

import platform
import shutil
import weakref
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from math import prod
from pathlib import Path
from tempfile import mkdtemp

import torch
from lightning.fabric import Fabric
from torch import Tensor

from fl_lightning.core.device import to_device_async
from fl_lightning.core.randomness import derived_seed
from fl_lightning.core.term import States
from fl_lightning.federation.row_files import RowFiles

Pins = dict[str, tuple[int, Tensor]]
"""By the checkpoint's name: its pin's number, from 1, and where its rows lie."""

MOST_PINS = 127
"""A place is an int8, and one must be free."""

ALIGNMENT = 16
"""Every state of a row begins at a multiple of so many bytes, whatever its dtype."""


class ClientStore:
    """What clients keep between rounds: one row a client, in sparse files shared by all ranks.

    A client's row begins at its first visit and takes no disk before. A row has several places, and
    a write goes to the first one that no kept checkpoint refers to. So a run killed at any moment,
    in the middle of a write too, finds the rows of every checkpoint as they were: nothing is
    copied, and nothing has to be undone. On disk a row takes two places while one checkpoint is
    kept, never more than k + 1 with k of them, and fewer where rows have not changed in between.

    All ranks call `commit`, `pin` and `unpin` alike; a row is written by the one rank that trains
    the client.

    Rows are read and written whole, in the order of the calls, by a thread that begins with the
    first of them and ends with the store, so that clients can train meanwhile: `prefetch` says
    whose rows are read next, and `settle` waits for those that were written, before another rank
    may read them. To and from a GPU they go through pinned memory, in the order of what it
    computes, so that the program need not wait for it.

    Args:
        folder: Where the files lie; made with the first row.
        num_clients: Number of rows.
        begin: States as they would begin, one dictionary a term: names, shapes and dtypes of the
            rows.
        memory: Bytes of rows that may stay in the machine's memory, besides those on their way
            between file and client; None leaves it to the system.
        ranks: How many ranks of the machine share that, each with a store of the same folder.

    Attributes:
        memory: As given.
        row: Bytes of a client's row; 0 if the algorithm keeps nothing.
        slot: Where each client's row lies now, (num_clients,) int8; -1 if it was never visited.
        retained: The same as of each kept checkpoint, by its name, with a number that no pin had
            before.
    """

    def __init__(
        self,
        folder: Path,
        num_clients: int,
        begin: Sequence[States],
        memory: int | None = None,
        ranks: int = 1,
    ):
        self.num_clients, self.folder, self.memory = num_clients, folder, memory
        self.slot = torch.full((num_clients,), -1, dtype=torch.int8)
        self.retained: Pins = {}
        self._pins = 0  # how many there have been
        self._begin = [
            {name: (state.shape, state.dtype) for name, state in states.items()} for states in begin
        ]
        lengths = [_length(*kind) for states in self._begin for kind in states.values()]
        self.row = sum(-(-length // ALIGNMENT) * ALIGNMENT for length in lengths)
        self._files = RowFiles(folder, self.row, None if memory is None else memory // ranks)
        devices = {state.device for states in begin for state in states.values()}
        self._gpu = next((device for device in devices if device.type == "cuda"), None)
        first = (
            partial(torch.cuda.set_device, self._gpu) if self._gpu else None
        )  # or it takes memory of GPU 0 too
        self._thread = ThreadPoolExecutor(1, "client-rows", first)
        self._ahead: dict[
            int, Future[Tensor]
        ] = {}  # by client: rows that are read before they are asked for
        self._behind: list[Future[None]] = []  # rows that are written
        self._spare: list[Tensor] = []  # memory that rows were written from

    def _states(self, row: Tensor) -> list[States]:
        """The states in a row of bytes, as views."""
        start, terms = 0, list[States]()
        for states in self._begin:
            views = {}
            for name, (shape, dtype) in states.items():
                stop = start + _length(shape, dtype)
                views[name] = row[start:stop].view(dtype).view(shape)
                start = -(-stop // ALIGNMENT) * ALIGNMENT
            terms.append(views)
        return terms

    def has(self, client: int) -> bool:
        """Whether this client has been visited before."""
        return bool(self.slot[client] >= 0)

    def prefetch(self, clients: Iterable[int]) -> None:
        """Begin to read the rows of these clients, in the order of their visits; who was never visited has none."""
        for client in clients if self.row else ():
            if client not in self._ahead and self.has(client):
                self._ahead[client] = self._begin_to_read(client)

    def _begin_to_read(self, client: int) -> "Future[Tensor]":
        row = torch.empty(self.row, dtype=torch.uint8, pin_memory=self._gpu is not None)
        return self._thread.submit(self._files.read, int(self.slot[client]), client, row)

    def read(self, client: int, device: torch.device) -> list[States]:
        """The client's states, one dictionary a term, copied to the device.

        Raises:
            OSError: If the file does not hold them.
        """
        if not self.row:
            return [{} for _ in self._begin]
        row = (self._ahead.pop(client, None) or self._begin_to_read(client)).result()
        return self._states(to_device_async(row, device))

    def write(self, client: int, states: Sequence[States]) -> None:
        """Begin to write the client's row; `settle` tells whether it arrived, and it counts from the next `commit` on.

        The states may change from now on; those that are not kept are passed over.
        """
        if not self.row:
            return
        self._ahead.pop(client, None)  # what was read ahead is out of date
        pinned = self._gpu is not None
        row = (
            self._spare.pop()
            if self._spare
            else torch.zeros(self.row, dtype=torch.uint8, pin_memory=pinned)
        )
        for term, values in zip(self._states(row), states, strict=True):
            for name, state in term.items():
                state.copy_(values[name].detach(), non_blocking=pinned)
        here = (
            torch.cuda.current_stream(self._gpu).record_event(torch.cuda.Event(blocking=True))
            if pinned
            else None
        )
        slot = int(self._free(torch.tensor([client])))
        self._behind.append(
            self._thread.submit(_write, self._files, slot, client, row, here, self._spare)
        )

    def wait_for_writes(self, but: int = 0) -> None:
        """Wait until the rows that were written are in their files, where every rank can read them.

        Args:
            but: So many of those written last may still be on their way.

        Raises:
            OSError: If one of them could not be written.
        """
        first = max(0, len(self._behind) - but)
        behind, self._behind = self._behind[:first], self._behind[first:]
        if failed := [
            error for written in behind if (error := written.exception())
        ]:  # having waited for all of them
            raise failed[0]

    def commit(self, clients: Sequence[int]) -> None:
        """Let the rows that were written for these clients count: once a round, on every rank, after all settled."""
        self.wait_for_writes()
        self._ahead.clear()
        cohort = torch.tensor(clients, dtype=torch.long)
        self.slot[cohort] = self._free(cohort)

    def _free(self, clients: Tensor) -> Tensor:
        """The first place of each client's row that no checkpoint refers to."""
        candidates = torch.arange(len(self.retained) + 1, dtype=torch.int8)[:, None]
        taken = torch.zeros(len(candidates), len(clients), dtype=torch.bool)
        for _, slot in self.retained.values():
            taken |= candidates == slot[clients]
        return taken.to(torch.int8).argmin(0).to(torch.int8)  # of equal ones the first

    def disk_bytes(self) -> int:
        """Bytes that the rows take on disk now."""
        self.wait_for_writes()
        return self._files.disk_bytes()

    def flush(self) -> None:
        """Put the rows of this machine on disk, before a checkpoint says that they are there."""
        self.wait_for_writes()
        self._files.flush()

    def retain(self, checkpoint: str = "last") -> None:
        """A checkpoint refers to the rows as they are now, in place of one of the same name: write elsewhere.

        Raises:
            ValueError: If there are too many.
        """
        if len({*self.retained, checkpoint}) > MOST_PINS:
            raise ValueError(
                f"clients' states of {MOST_PINS} checkpoints can be kept at once: unpin another before"
            )
        self.wait_for_writes()
        self._pins += 1
        self.retained[checkpoint] = self._pins, self.slot.clone()

    def release(self, checkpoint: str) -> None:
        """This checkpoint is no more: its rows may be written over."""
        self.retained.pop(checkpoint, None)

    def is_retained(self, slot: Tensor, retained: Pins | None = None) -> bool:
        """Whether the rows at these places stay as they are: because there are none, or because they are pinned.

        Args:
            slot: As the attribute.
            retained: As the attribute was at that time, if it is past: the places may hold other
                rows by now.
        """
        if not self.row or bool((slot < 0).all()):
            return True
        before = {
            number for number, _ in (self.retained if retained is None else retained).values()
        }
        return any(number in before and slot.equal(kept) for number, kept in self.retained.values())

    def restore(self, slot: Tensor, retained: Pins) -> None:
        """Go back to the rows of a checkpoint.

        Args:
            slot: `slot` as it was.
            retained: `retained` as it was; a store that has begun keeps its own.

        Raises:
            ValueError: If the rows are not there, or this store may have written over them.
        """
        if self.row and not self._files.begun and bool((slot >= 0).any()):
            raise ValueError(
                f"the checkpoint refers to clients' states in {self.folder}, where there were none: resume there"
            )
        begun = bool(self.retained) or bool((self.slot >= 0).any())
        if begun and not self.is_retained(slot, retained):
            raise ValueError(
                "later rounds may have written over the clients' states of this checkpoint: call "
                "federation.store.pin(name) before each state_dict(), a name for each that is to be loaded again"
            )
        with suppress(Exception):  # what was still being written counts no more
            self.wait_for_writes()
        self._ahead.clear()
        self.slot = slot.to(torch.int8).clone()
        if not begun:
            self.retained, self._pins = (
                dict(retained),
                max((number for number, _ in retained.values()), default=0),
            )


def open_store(
    fabric: Fabric,
    folder: Path | None,
    num_clients: int,
    begin: Sequence[States],
    memory: int | None = None,
) -> ClientStore:
    """The store of a run, on every rank: all use the folder of the first, since any rank may train any client.

    Args:
        fabric: A launched Fabric.
        folder: Where the files lie; None is a temporary folder that goes with the first rank's
            store.
        num_clients: Number of rows.
        begin: As for `ClientStore`.
        memory: As for `ClientStore`.
    """
    temporary = (
        Path(mkdtemp(prefix="fl_lightning-")) if folder is None and fabric.is_global_zero else None
    )
    folder = Path(fabric.broadcast(str(folder or f"{temporary}/rows")))
    store = ClientStore(
        folder, num_clients, begin, memory, 1 if memory is None else _ranks_here(fabric)
    )
    if temporary:
        weakref.finalize(store, _remove, temporary, store._thread)
    return store


def _remove(folder: Path, thread: ThreadPoolExecutor) -> None:
    with suppress(RuntimeError):  # the thread itself may be the one that finds the store gone
        thread.shutdown(cancel_futures=True)
    shutil.rmtree(folder, ignore_errors=True)


def _write(
    files: RowFiles,
    slot: int,
    client: int,
    row: Tensor,
    here: torch.cuda.Event | None,
    spare: list[Tensor],
) -> None:
    if here is not None:
        here.synchronize()
    files.write(slot, client, row)
    spare.append(row)


def _ranks_here(fabric: Fabric) -> int:
    """How many ranks run on this machine."""
    names, mine = (
        torch.zeros(fabric.world_size, dtype=torch.int64, device=fabric.device),
        fabric.global_rank,
    )
    names[mine] = derived_seed(0, platform.node())
    fabric.all_reduce(names, reduce_op="sum")
    return int((names == names[mine]).sum())


def _length(shape: torch.Size, dtype: torch.dtype) -> int:
    return prod(shape) * dtype.itemsize
