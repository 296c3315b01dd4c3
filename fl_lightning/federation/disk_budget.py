"""Disk budget: the disk and memory that the clients' states of a run take."""

import shutil
from pathlib import Path

from rich.filesize import decimal

from fl_lightning.federation.federation import Federation
from fl_lightning.federation.sampling import largest_cohort

BLOCK = 4096
"""Smallest unit that a file system allocates, in bytes."""


class DiskBudget:
    """What the clients' states take in the remaining rounds of a run, in bytes.

    All ranks make one.

    Args:
        federation: The run.
        keep_checkpoints: Number of checkpoints that are kept.

    Attributes:
        row: States of one client; 0 if the algorithm keeps nothing.
        versions: Number of versions of a row on disk: one for each kept checkpoint, and the one
            being written.
        round: States of the largest cohort, which a round reads and writes.
        used: Disk space in use now.
        most: Bound on the disk space in use at the end of the run.
        free: Free space on the disk.
    """

    def __init__(self, federation: Federation, keep_checkpoints: int):
        store, rounds = federation.store, federation.rounds - federation.round
        cohort = largest_cohort(federation.sampler, store.num_clients)
        self.store, self.row, self.versions = store, store.row, keep_checkpoints + 1
        self.round = cohort * self.row
        here = store.disk_bytes(), free_space(store.folder)
        self.used, self.free = federation.fabric.broadcast(here)
        written = (self.row // BLOCK + 2) * BLOCK  # a row shares the blocks at its ends
        rows = self.versions * store.num_clients * (self.row + BLOCK)
        most = max(self.used, min(rows, self.used + cohort * rounds * written))
        self.most = most if self.row else 0

    def check_disk_space(self) -> None:
        """Raise a ValueError if less is free than the states may still grow by."""
        if self.free < self.most - self.used:
            raise ValueError(
                f"clients' states may grow by {decimal(self.most - self.used)}, but "
                f"{decimal(self.free)} are free on the disk of {self.store.folder}: put "
                "--run-dir on a larger disk, or lower --rounds, --clients or --keep-checkpoints"
            )

    def __str__(self) -> str:
        """In words; empty if clients keep nothing."""
        if not self.row:
            return ""
        memory = "in memory what the system has room for"
        if self.store.memory is not None:
            memory = f"at most {decimal(self.store.memory)} resident"
        there = f", {decimal(self.used)} there already" if self.used else ""
        return (
            f"{self.store.num_clients} clients: at most {decimal(self.most)} on disk "
            f"({decimal(self.row)} a client, in up to {self.versions} versions for the "
            f"checkpoints{there}), {decimal(self.round)} of it a round, and {memory}"
        )


def free_space(folder: Path) -> int:
    """Bytes free on the disk where a folder lies or will be made."""
    absolute = folder.absolute()
    exists = next(path for path in (absolute, *absolute.parents) if path.exists())
    return shutil.disk_usage(exists).free
