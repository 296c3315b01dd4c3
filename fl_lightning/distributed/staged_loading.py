"""Staged loading: rank 0 first, which may have to download, then the other ranks."""

from collections.abc import Callable
from typing import TypeVar

import torch
from lightning.fabric import Fabric

Loaded = TypeVar("Loaded")


def load_rank_zero_first(fabric: Fabric, load: Callable[[], Loaded]) -> Loaded:
    """Call `load` on rank 0, then on one rank of each other machine, then on the rest.

    An error is raised on the first rank that had one, SystemExit on the others.
    """
    loaded: list[Loaded] = []
    failed: list[Exception] = []

    def attempt() -> None:
        try:
            loaded.append(load())
        except Exception as error:  # raised below: other ranks wait for this one now
            failed.append(error)

    with fabric.rank_zero_first():
        if fabric.local_rank == 0:
            attempt()
    with fabric.rank_zero_first(local=True):
        if fabric.local_rank > 0:
            attempt()
    failures = ranks_where(fabric, bool(failed))
    if not failures:
        return loaded[0]
    if (first := failures[0]) != fabric.global_rank:
        raise SystemExit(2)
    if first > 0:
        failed[0].add_note(f"on rank {first}")
    raise failed[0]


def ranks_where(fabric: Fabric, here: bool) -> list[int]:
    """The ranks on which something holds, ascending; each rank says whether it does there."""
    ranks = torch.zeros(fabric.world_size, device=fabric.device)
    ranks[fabric.global_rank] = here
    fabric.all_reduce(ranks, reduce_op="sum")
    return ranks.nonzero().flatten().tolist()
