"""A share of the test set for every client, with the mix of classes that the client trains on."""

import torch
from torch import Tensor

from fl_lightning.core.randomness import generator
from fl_lightning.data.partition import Partition
from fl_lightning.data.partition_draws import check_labels

TOGETHER = 2**22  # random keys drawn at once


def aligned(y: Tensor, class_counts: Tensor, size: int = 1000, seed: int = 0) -> Partition:
    """Test images for every client in the proportions of its training labels, as FedSOL scores local models.

    Of each class a client gets floor(size * its share in the client's training data), at most as many as there are,
    drawn without replacement; different clients may get the same images, and each client's are in order of position.
    A client that would get none at all gets one image of the class it holds most of among those that the test set
    has; where the test set has none of its classes, one of the first class there is.

    Args:
        y: (n,) int64 labels of the test set.
        class_counts: (num_clients, num_classes) int64, the training samples of each client (`ClientData.class_counts`).
        size: how many images a client gets, at most.
        seed: seed of the draw.

    Returns:
        Which test images each client is scored on.

    Raises:
        ValueError: no test images, labels beyond the classes counted, or a size below one.

    Example::

        split = aligned(test.y, clients.class_counts)
        mine = test.inputs(split[3])
    """
    if not len(y):
        raise ValueError("y is empty; give the labels of at least one test image.")
    check_labels(y, 1)
    y, class_counts = y.cpu(), class_counts.cpu().long()
    if class_counts.ndim != 2 or int(y.max()) >= class_counts.shape[1]:
        raise ValueError(
            f"class_counts has shape {tuple(class_counts.shape)}; give a row for each client and a column for each "
            f"class, at least {int(y.max()) + 1} of them."
        )
    num_clients, num_classes = class_counts.shape
    if size < 1:
        raise ValueError(f"size is {size}; give the number of test images of a client, at least 1.")
    available = y.bincount(minlength=num_classes)
    held = class_counts.sum(1, keepdim=True).clamp(min=1)
    wanted = (size * class_counts // held).minimum(available)
    most = class_counts.masked_fill(available == 0, -1).argmax(1)
    wanted[torch.arange(num_clients), most] += wanted.sum(1) == 0

    g = generator(seed, "aligned")
    owners, samples = [], []
    for label in range(num_classes):
        images = (y == label).nonzero().flatten()
        holders = wanted[:, label].nonzero().flatten()
        for some in torch.split(holders, max(1, TOGETHER // max(1, len(images)))):
            lot = torch.rand(len(some), len(images), generator=g, dtype=torch.float32).argsort(1)
            client, rank = (
                (torch.arange(len(images)) < wanted[some, label, None]).nonzero().unbind(1)
            )
            owners.append(some[client])
            samples.append(images[lot[client, rank]])
    return Partition.from_owners(torch.cat(owners), num_clients, torch.cat(samples))
