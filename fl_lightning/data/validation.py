"""Validation parts: random samples held out of the clients' data or of the test set."""

import torch
from torch import Tensor

from fl_lightning.core.randomness import generator
from fl_lightning.data.dataset import DeviceDataset
from fl_lightning.data.partition import Partition


def hold_out_of_clients(
    partition: Partition, fraction: float, seed: int
) -> tuple[Partition, Tensor]:
    """Hold out a random part of every client's samples.

    A client of n samples gives `round(fraction * n)` and keeps at least one. A held-out sample is
    removed from every client that holds it, unless that would leave a client empty.

    Args:
        partition: The samples of each client.
        fraction: The fraction of each client's samples, above 0 and below 1.
        seed: The seed of the draw.

    Returns:
        The samples for training, and the positions of those held out, (m,) int64, sorted.
    """
    sizes, held = partition.sizes, _no_samples(partition)
    owners = torch.arange(len(partition), dtype=torch.int32).repeat_interleave(sizes)
    draws = torch.rand(len(owners), generator=generator(seed, "validation"), dtype=torch.float64)
    order = draws.argsort()
    order = order[owners[order].argsort(stable=True)]  # client after client, each in random order
    number = (fraction * sizes).round().long().minimum(sizes - 1)
    place = torch.arange(len(owners)) - partition.offsets[:-1].repeat_interleave(sizes)
    held[partition.indices[order[place < number.repeat_interleave(sizes)]]] = True
    del draws, order, place
    trained = owners[~held[partition.indices]].bincount(minlength=len(partition))
    emptied = (trained == 0) & (sizes > 0)
    held[partition.indices[partition.offsets[:-1][emptied]]] = False
    is_trained = ~held[partition.indices]
    kept = owners[is_trained].bincount(minlength=len(partition)).cumsum(0)
    offsets = torch.cat([kept.new_zeros(1), kept])
    return Partition(partition.indices[is_trained], offsets), held.nonzero().flatten()


def owners_of_held(partition: Partition, held: Tensor) -> Partition:
    """The partition of held-out samples, as positions in `held`, over those who held them."""
    rank = _no_samples(partition).int()
    rank[held] = torch.arange(1, len(held) + 1, dtype=torch.int32)
    places = rank[partition.indices]
    owners = torch.arange(len(partition), dtype=torch.int32).repeat_interleave(partition.sizes)
    kept = owners[places > 0].bincount(minlength=len(partition)).cumsum(0)
    return Partition(places[places > 0].long() - 1, torch.cat([kept.new_zeros(1), kept]))


def _no_samples(partition: Partition) -> Tensor:
    """(n,) bool, False for each of the samples up to the last that a client holds."""
    last = int(partition.indices.max()) if len(partition.indices) else -1
    return torch.zeros(last + 1, dtype=torch.bool)


def hold_out(
    data: DeviceDataset, fraction: float, seed: int
) -> tuple[DeviceDataset, DeviceDataset]:
    """Split a data set at random; the second part holds `fraction` of it, at least one sample."""
    order = torch.randperm(len(data), generator=generator(seed, "validation"))
    number = max(1, round(fraction * len(data)))
    return data.subset(order[number:].sort().values), data.subset(order[:number].sort().values)
