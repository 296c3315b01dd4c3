"""A share of the test set for each client, with the client's own mix of classes."""

import torch
from torch import Tensor

from fl_lightning.core.constraints import PositiveInt, checked
from fl_lightning.core.randomness import generator
from fl_lightning.data.partition import Partition
from fl_lightning.data.partition_draws import check_labels

KEYS_PER_DRAW = 2**22
"""Random keys drawn together."""


@checked
def aligned(y: Tensor, class_counts: Tensor, size: PositiveInt = 1000, seed: int = 0) -> Partition:
    """Test images for each client in the proportions of its training labels, as in FedSOL.

    A client gets floor(size * its share of the class) images of each class, at most as many as
    there are, drawn without replacement. Different clients may get the same images. A client that
    would get none gets one image: of the class that it holds most of among those in the test set,
    or else of the first class in the test set.

    Lee et al., "FedSOL: Stabilized Orthogonal Learning with Proximal Restrictions in Federated
    Learning", CVPR 2024, arXiv:2308.12532.

    Args:
        y: (n,) int64 labels of the test set.
        class_counts: (num_clients, num_classes) int64, the training samples of each client
            (`ClientData.class_counts`).
        size: The largest number of images of a client.
        seed: The seed of the draw.

    Returns:
        The test images of each client, in order of position.

    Raises:
        ValueError: If there are no test images, labels are not counted, or size is below one.
    """
    y, class_counts = check_labels(y, clients=1), class_counts.cpu().long()
    if class_counts.ndim != 2 or int(y.max()) >= class_counts.shape[1]:
        raise ValueError(
            f"class_counts has shape {tuple(class_counts.shape)}: "
            f"give a row per client and a column per class, at least {int(y.max()) + 1}"
        )
    num_clients, num_classes = class_counts.shape
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
        for some in torch.split(holders, max(1, KEYS_PER_DRAW // max(1, len(images)))):
            keys = torch.rand(len(some), len(images), generator=g, dtype=torch.float32)
            taken = torch.arange(len(images)) < wanted[some, label, None]
            client, rank = taken.nonzero().unbind(1)
            owners.append(some[client])
            samples.append(images[keys.argsort(1)[client, rank]])
    return Partition.from_owners(torch.cat(owners), num_clients, torch.cat(samples))
