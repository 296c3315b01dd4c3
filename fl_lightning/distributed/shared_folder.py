"""The folder in which several ranks keep the clients' states."""

import secrets
from pathlib import Path

from lightning.fabric import Fabric

from fl_lightning.distributed.staged_loading import load_rank_zero_first, ranks_where
from fl_lightning.errors import UserError


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
