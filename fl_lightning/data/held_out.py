"""Samples held out: validation parts, and test samples for each client."""

import numpy as np
import torch
from torch import Tensor

from fl_lightning.core.constraints import PositiveInt, checked
from fl_lightning.core.randomness import generator
from fl_lightning.data.dataset import DeviceDataset
from fl_lightning.data.partition import Partition
from fl_lightning.data.partition_draws import check_labels

KEYS_PER_DRAW = 2**22
"""Random keys drawn together."""


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


def own_test_split(
    train: DeviceDataset, test: DeviceDataset, partition: Partition
) -> Partition | None:
    """The test samples with the owner, or domain, of each client's training samples.

    Returns:
        The test samples of each client, none of a client with training samples of several owners.
        None if owners are not known, or no client has test samples.
    """
    if train.domains is None or test.domains is None:
        return None
    of_sample, sizes = train.domains.cpu()[partition.indices], partition.sizes
    first = of_sample[partition.offsets[:-1].clamp(max=len(of_sample) - 1)]
    mixed = partition.where(of_sample != first.repeat_interleave(sizes)).sizes > 0
    counts = test.domains.cpu().bincount(minlength=len(train.domain_names))
    of_domain = test.domains.cpu().argsort(stable=True).split(counts.tolist())
    known = ((sizes > 0) & ~mixed).tolist()
    own = [of_domain[d][: None if k else 0] for d, k in zip(first.tolist(), known, strict=True)]
    return Partition.from_lists(own) if any(map(len, own)) else None


@checked
def matched_test_split(
    y: Tensor, class_counts: Tensor, size: PositiveInt = 1000, seed: int = 0
) -> Partition:
    """Test samples for each client in the proportions of its training labels, as in FedSOL.

    A client gets floor(size * its fraction of the class) samples of each class, at most as many as
    the test set has, drawn without replacement, in order of position. Clients may get the same
    samples. A client whose quotas round to zero gets one sample of its most frequent class in the
    test set.

    Lee et al., "FedSOL: Stabilized Orthogonal Learning with Proximal Restrictions in Federated
    Learning", CVPR 2024, arXiv:2308.12532.

    Args:
        y: (n,) int64 labels of the test set.
        class_counts: (num_clients, num_classes) int64, the training samples of each client
            (`ClientData.class_counts`).
        size: Most test samples of a client.
        seed: The seed of the draw.

    Raises:
        UserError: If the test set is empty, or size is below one.
    """
    y, class_counts = check_labels(y, clients=1), class_counts.cpu().long()
    num_clients, num_classes = class_counts.shape
    available = y.bincount(minlength=num_classes)
    held = class_counts.sum(1, keepdim=True).clamp(min=1)
    wanted = (size * class_counts // held).minimum(available)
    most = class_counts.masked_fill(available == 0, -1).argmax(1)
    wanted[torch.arange(num_clients), most] += wanted.sum(1) == 0

    g = generator(seed, "aligned")
    owners, positions = [], []
    for label in range(num_classes):
        samples = (y == label).nonzero().flatten()
        holders = wanted[:, label].nonzero().flatten()
        for some in torch.split(holders, max(1, KEYS_PER_DRAW // max(1, len(samples)))):
            keys = torch.rand(len(some), len(samples), generator=g, dtype=torch.float32)
            taken = torch.arange(len(samples)) < wanted[some, label, None]
            client, rank = taken.nonzero().unbind(1)
            owners.append(some[client])
            positions.append(samples[keys.argsort(1)[client, rank]])
    return Partition.from_owners(torch.cat(owners), num_clients, torch.cat(positions))
