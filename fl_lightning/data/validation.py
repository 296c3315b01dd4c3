"""Validation parts: random samples held out of the clients' data or of the test set."""

import numpy as np
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

    Returns:
        The samples for training, and the positions of those held out, (m,) int64, sorted.
    """
    sizes, held = partition.sizes, torch.zeros(partition.end, dtype=torch.bool)
    number = (fraction * sizes).round().long().minimum(sizes - 1)
    random = generator(seed, "validation")
    draws = torch.rand(len(partition.indices), generator=random, dtype=torch.float64).numpy()
    places = [np.empty(0, np.int64)]
    ranges = partition.offsets[:-1].tolist(), partition.offsets[1:].tolist(), number.tolist()
    # a sort of all draws takes three times as long
    for begin, end, count in zip(*ranges, strict=True):
        if count > 0:
            places.append(begin + draws[begin:end].argpartition(count)[:count])
    held[partition.indices[torch.from_numpy(np.concatenate(places))]] = True
    trained = partition.where(~held[partition.indices])
    emptied = (trained.sizes == 0) & (sizes > 0)
    if emptied.any():
        held[partition.indices[partition.offsets[:-1][emptied]]] = False
        trained = partition.where(~held[partition.indices])
    return trained, held.nonzero().flatten()


def owners_of_held(partition: Partition, held: Tensor) -> Partition:
    """The partition of held-out samples, as positions in `held`, over those who held them."""
    is_held = torch.zeros(partition.end, dtype=torch.bool)
    is_held[held] = True
    theirs = partition.where(is_held[partition.indices])
    places = is_held.cumsum(0) - 1
    return Partition(places[theirs.indices], theirs.offsets)


def hold_out(
    data: DeviceDataset, fraction: float, seed: int
) -> tuple[DeviceDataset, DeviceDataset]:
    """Split a data set at random; the second part holds `fraction` of it, at least one sample."""
    order = torch.randperm(len(data), generator=generator(seed, "validation"))
    number = max(1, round(fraction * len(data)))
    return data.subset(order[number:].sort().values), data.subset(order[:number].sort().values)
