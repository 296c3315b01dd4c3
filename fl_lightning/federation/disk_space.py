"""The disk space that the clients' states of a run may take."""

from fl_lightning.federation.federation import Federation
from fl_lightning.federation.sampling import largest_cohort

BLOCK = 4096
"""Smallest unit that a file system allocates, in bytes."""


def most_disk_bytes(federation: Federation, keep_checkpoints: int) -> int:
    """A bound on the bytes of clients' states on disk at the end of a run; 0 if it keeps none.

    Each visit writes at most one row, and a row has a slot for each kept checkpoint and one more.
    """
    store, visits = federation.store, federation.rounds - federation.round
    visits *= largest_cohort(federation.sampler, store.num_clients)
    used, row = store.disk_bytes(), store.row + 2 * BLOCK  # it shares the blocks at its ends
    every_slot = (keep_checkpoints + 1) * store.num_clients * (store.row + BLOCK)
    return max(used, min(every_slot, used + visits * row)) if store.row else 0
