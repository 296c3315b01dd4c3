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
    sizes = partition.sizes
    owners = torch.arange(len(partition)).repeat_interleave(sizes)
    draws = torch.rand(len(owners), generator=generator(seed, "validation"), dtype=torch.float64)
    order = draws.argsort()
    order = order[owners[order].argsort(stable=True)]  # client after client, each in random order
    place = torch.arange(len(owners)) - partition.offsets[owners]
    number = (fraction * sizes).round().long().minimum(sizes - 1)
    held = partition.indices[order[place < number[owners]]].unique()
    trained = ~torch.isin(partition.indices, held)
    emptied = (owners[trained].bincount(minlength=len(partition)) == 0) & (sizes > 0)
    given_back = partition.indices[partition.offsets[:-1][emptied]]
    held = held[~torch.isin(held, given_back)]
    trained |= torch.isin(partition.indices, given_back)
    kept = owners[trained].bincount(minlength=len(partition)).cumsum(0)
    return Partition(partition.indices[trained], torch.cat([kept.new_zeros(1), kept])), held


def owners_of_held(partition: Partition, held: Tensor) -> Partition:
    """The partition of held-out samples, as positions in `held`, over those who held them."""
    rank = torch.full((int(partition.indices.max()) + 1,), -1)
    rank[held] = torch.arange(len(held))
    places = rank[partition.indices]
    given = places >= 0
    offsets = torch.cat([places.new_zeros(1), given.cumsum(0)])[partition.offsets]
    return Partition(places[given], offsets)


def hold_out(
    data: DeviceDataset, fraction: float, seed: int
) -> tuple[DeviceDataset, DeviceDataset]:
    """Split a data set at random; the second part holds `fraction` of it, at least one sample."""
    order = torch.randperm(len(data), generator=generator(seed, "validation"))
    number = max(1, round(fraction * len(data)))
    return data.subset(order[number:].sort().values), data.subset(order[:number].sort().values)
