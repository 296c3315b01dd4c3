"""What the states that clients keep will take of disk and memory, and whether there is room for it."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fl_lightning.federation.sampling import largest_cohort

if TYPE_CHECKING:
    from fl_lightning.federation.federation import Federation

BLOCK = 4096
"""What a disk gives out at once."""


@dataclass(frozen=True)
class DiskBudget:
    """What the clients' states of a run take, in bytes.

    Attributes:
        clients: Number of clients.
        row: What one client keeps; 0 if the algorithm keeps nothing.
        versions: In how many versions a row may lie on disk: one for each kept checkpoint, and the
            one that is written.
        round: What the largest cohort keeps, which is what a round reads and writes.
        used: What lies on disk now.
        most: What may lie there when the run ends: all versions of all clients, or fewer if it ends
            before.
        memory: Bound on what stays in a machine's memory; None leaves it to the system.
        folder: Where the states lie.
        free: Room on its disk.
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
    def of(cls, federation: "Federation", keep_checkpoints: int) -> "DiskBudget":
        """The budget of the rounds that remain, with so many checkpoints and the best one kept."""
        store, fabric, versions = federation.store, federation.fabric, keep_checkpoints + 2
        row, clients = store.row, federation.clients.num_clients
        used, free = fabric.broadcast((store.disk_bytes(), free_space(store.folder)))
        cohort = largest_cohort(federation.participation, clients)
        visits = cohort * (federation.rounds - federation.round)
        written = (row // BLOCK + 2) * BLOCK  # a row shares the blocks at its ends
        most = (
            max(used, min(versions * clients * (row + BLOCK), used + visits * written))
            if row
            else 0
        )
        return cls(
            clients, row, versions, cohort * row, used, most, store.memory, store.folder, free
        )

    def check_disk_space(self) -> None:
        """Refuse to begin what the disk cannot hold in the end.

        Raises:
            ValueError: If less is free than the states may still grow by.
        """
        if self.free < self.most - self.used:
            raise ValueError(
                f"clients' states may grow by {human_bytes(self.most - self.used)}, but "
                f"{human_bytes(self.free)} are free on the disk of {self.folder}: free some, put --run-dir on a larger disk, or run fewer --rounds, "
                "--clients or --keep-checkpoints"
            )

    def __str__(self) -> str:
        """In words; empty if clients keep nothing."""
        if not self.row:
            return ""
        resident = "and in memory what the system has room for"
        if self.memory is not None:
            resident = f"and at most {human_bytes(self.memory)} resident"
        there = f", {human_bytes(self.used)} there already" if self.used else ""
        return (
            f"{self.clients} clients: at most {human_bytes(self.most)} on disk ({human_bytes(self.row)} a client, "
            f"in up to {self.versions} versions for the checkpoints{there}), {human_bytes(self.round)} of it a round, {resident}"
        )


def free_space(folder: Path) -> int:
    """Bytes free on the disk where a folder lies or will be made."""
    there = folder.absolute()
    while not there.exists():
        there = there.parent
    return shutil.disk_usage(there).free


def human_bytes(size: float) -> str:
    """A number of bytes for people: 44.7 GB."""
    units = ["bytes", "kB", "MB", "GB", "TB", "PB"]
    power = 0
    while size >= 999.95 and power < len(units) - 1:
        size, power = size / 1000, power + 1
    return f"{size:.1f} {units[power]}" if power else f"{int(size)} bytes"
