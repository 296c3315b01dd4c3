"""What the ranks of a run must have alike before the first round, and would never notice otherwise."""

from hashlib import sha256

import torch
from lightning.fabric import Fabric
from torch import nn

from fl_lightning.data import ClientData


def agree(fabric: Fabric, module: nn.Module, clients: ClientData) -> None:
    """Give every rank the first one's initial model, and compare their data.

    Raises:
        ValueError: On every rank, if one of them has other data than the first.
    """
    if fabric.world_size == 1:
        return
    mine = _digest(clients)
    apart = torch.zeros(fabric.world_size, device=fabric.device)
    apart[fabric.global_rank] = mine != fabric.broadcast(mine)
    fabric.all_reduce(apart, reduce_op="sum")
    for rank in apart.nonzero().flatten().tolist():
        raise ValueError(
            f"rank {rank} has other data, or another partition, than the first: whatever is drawn at random in loading "
            "or splitting them needs a generator with a seed of its own, the same on every rank"
        )
    with torch.no_grad():
        for tensor in [*module.parameters(), *module.buffers()]:
            tensor.copy_(fabric.broadcast(tensor.detach().cpu()))  # or it would come from the first GPU on each rank


def _digest(clients: ClientData) -> str:
    """Of labels, partition and three samples: those of a memory map are not all read."""
    data = clients.dataset
    few = data.inputs(torch.tensor([0, len(data) // 2, len(data) - 1], device=data.x.device))
    return clients.digest + sha256(few.float().cpu().contiguous().numpy().tobytes()).hexdigest()
