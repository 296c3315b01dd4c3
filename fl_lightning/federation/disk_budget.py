"""Disk budget: the disk and memory that the clients' states of a run take."""

import shutil
from dataclasses import dataclass
from pathlib import Path

from fl_lightning.federation.federation import Federation
from fl_lightning.federation.sampling import largest_cohort

BLOCK = 4096
"""Smallest unit that a file system allocates, in bytes."""


@dataclass(frozen=True)
class DiskBudget:
    """What the clients' states of a run take, in bytes.

    Attributes:
        clients: Number of clients.
        row: States of one client; 0 if the algorithm keeps nothing.
        versions: Number of versions of a row on disk: one for each kept checkpoint, and the one
            being written.
        round: States of the largest cohort, which a round reads and writes.
        used: Disk space in use now.
        most: Bound on the disk space in use at the end of the run.
        memory: Bound on what stays in a machine's memory; None leaves it to the system.
        folder: Where the states lie.
        free: Free space on its disk.
    """

    clients: int
    row: int
    versions: int
    round: int
    used: int
    most: int
    memory: int | None
    folder: Path
    free: int

    @classmethod
    def of(cls, federation: Federation, keep_checkpoints: int) -> "DiskBudget":
        """The budget of the remaining rounds of a run. All ranks call it.

        Args:
            federation: The run.
            keep_checkpoints: Checkpoints that are kept besides the best one.
        """
        store, rounds = federation.store, federation.rounds - federation.round
        row, clients, versions = store.row, store.num_clients, keep_checkpoints + 2
        cohort = largest_cohort(federation.sampler, clients)
        used, free = federation.fabric.broadcast((store.disk_bytes(), free_space(store.folder)))
        written = (row // BLOCK + 2) * BLOCK  # a row shares the blocks at its ends
        most = min(versions * clients * (row + BLOCK), used + cohort * rounds * written)
        most = max(used, most) if row else 0
        return cls(
            clients, row, versions, cohort * row, used, most, store.memory, store.folder, free
        )

    def check_disk_space(self) -> None:
        """Raise a ValueError if less is free than the states may still grow by."""
        if self.free < self.most - self.used:
            raise ValueError(
                f"clients' states may grow by {human_bytes(self.most - self.used)}, but "
                f"{human_bytes(self.free)} are free on the disk of {self.folder}: put --run-dir on "
                "a larger disk, or lower --rounds, --clients or --keep-checkpoints"
            )

    def __str__(self) -> str:
        """In words; empty if clients keep nothing."""
        if not self.row:
            return ""
        memory = "in memory what the system has room for"
        if self.memory is not None:
            memory = f"at most {human_bytes(self.memory)} resident"
        there = f", {human_bytes(self.used)} there already" if self.used else ""
        return (
            f"{self.clients} clients: at most {human_bytes(self.most)} on disk "
            f"({human_bytes(self.row)} a client, in up to {self.versions} versions for the "
            f"checkpoints{there}), {human_bytes(self.round)} of it a round, and {memory}"
        )


def free_space(folder: Path) -> int:
    """Bytes free on the disk where a folder lies or will be made."""
    absolute = folder.absolute()
    exists = next(path for path in (absolute, *absolute.parents) if path.exists())
    return shutil.disk_usage(exists).free


def human_bytes(size: float) -> str:
    """A number of bytes with its unit: 44.7 GB."""
    if size < 999.95:
        return f"{int(size)} bytes"
    for unit in ("kB", "MB", "GB", "TB", "PB"):
        size /= 1000
        if size < 999.95 or unit == "PB":
            break
    return f"{size:.1f} {unit}"
