"""Data, a model and a partition.

fl-lightning run digits --data data.py:my_data --model data.py:my_model
fl-lightning run digits --data data.py:my_data --partition data.py:my_partition
"""

import torch
from torch import Tensor, nn

from fl_lightning import DeviceDataset, Partition


def my_data(root: str, samples: int = 1000) -> tuple[DeviceDataset, DeviceDataset]:
    """Images of three classes; every rank calls this, and must get the same.

    Args:
        root: The folder of --data-dir, to read files from.
        samples: Each further argument becomes an option, here --data.samples.
    """
    same_on_every_rank = torch.Generator().manual_seed(0)
    y = torch.arange(samples) % 3
    x = torch.randn(samples, 1, 8, 8, generator=same_on_every_rank) + y.view(-1, 1, 1, 1)
    test = torch.arange(samples) % 5 == 0
    classes = "low", "middle", "high"
    return DeviceDataset(x[~test], y[~test], classes), DeviceDataset(x[test], y[test], classes)


def my_model(classes: int, channels: int, width: int = 16) -> nn.Module:
    """A small convolutional network.

    Args:
        classes: Given by the data, as are channels, size and inputs where they are asked for.
        channels: Likewise.
        width: An option, --model.width.
    """
    body = nn.Conv2d(channels, width, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten()
    return nn.Sequential(*body, nn.Linear(4 * width, classes))


def my_partition(y: Tensor, clients: int, seed: int) -> Partition:
    """Which client holds which sample: here each its turn."""
    return Partition.from_owners(torch.arange(len(y)) % clients, clients)
