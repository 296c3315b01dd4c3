"""What all ranks do together: load data, find out where something holds, share a folder."""

import secrets
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch
from lightning.fabric import Fabric

from fl_lightning.errors import UserError

Loaded = TypeVar("Loaded")


def load_rank_zero_first(fabric: Fabric, load: Callable[[], Loaded]) -> Loaded:
    """Call `load` on rank 0, then on one rank of each other machine, then on the rest.

    An error is raised on the first rank that had one, SystemExit on the others.
    """
    loaded: list[Loaded] = []
    failed: list[Exception] = []
    for rest in (False, True):
        with fabric.rank_zero_first(local=rest):
            try:
                if (fabric.local_rank > 0) is rest:
                    loaded.append(load())
            except Exception as error:  # raised below: other ranks wait for this one now
                failed.append(error)
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


def check_shared_folder(fabric: Fabric, folder: Path) -> None:
    """Refuse a folder that the ranks, on several machines, do not share. All ranks call it.

    Raises:
        UserError: On every rank, if one of them does not see what rank 0 has written.
    """
    if fabric.world_size == 1:
        return
    token, file = str(fabric.broadcast(secrets.token_hex())), folder / ".shared"

    def write() -> None:
        if fabric.is_global_zero:
            folder.mkdir(parents=True, exist_ok=True)
            file.write_text(token)

    load_rank_zero_first(fabric, write)
    for rank in ranks_where(fabric, not file.is_file() or file.read_text() != token):
        raise UserError(
            f"rank {rank} does not see what rank 0 wrote in {folder}: give all machines one "
            "shared folder"
        )
