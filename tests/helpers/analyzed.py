"""A small model and data set whose analysis is known."""

import torch
from torch import nn

from fl_lightning.data import DeviceDataset


def blobs(samples: int = 30) -> DeviceDataset:
    g = torch.Generator().manual_seed(1)
    y = torch.arange(samples) % 3
    x = torch.randn(samples, 1, 4, 4, generator=g, dtype=torch.float64) + y.view(-1, 1, 1, 1)
    return DeviceDataset(x, y, ("a", "b", "c"))


def network() -> nn.Module:
    """With everything that a mode changes, and attention, whose fast kernels differ only once."""
    torch.manual_seed(2)
    return nn.Sequential(
        nn.Conv2d(1, 2, 3),
        nn.BatchNorm2d(2),
        nn.Tanh(),
        nn.Flatten(1),
        nn.Unflatten(1, (2, 4)),
        nn.TransformerEncoderLayer(4, 2, 4, 0.5, batch_first=True),
        nn.Flatten(),
        nn.Dropout(),
        nn.Linear(8, 3),
    ).double()
