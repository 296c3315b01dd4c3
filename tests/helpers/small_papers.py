"""`recipes/papers.py` with small random images and small networks under the same names."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import nn

from fl_lightning import DeviceDataset, models
from fl_lightning.data import sources
from fl_lightning.experiment import Experiment

PIXELS = 6
"""The height and width of an image."""

GRAY = {"mnist", "emnist_letters_aj", "tissuemnist"}
CLASSES = {"cifar100": 100, "pathmnist": 9, "tissuemnist": 8, "office_home": 65, "domain_net": 345}
"""Of the data sets that do not have ten."""

DOMAINS = {"office_home": 3, "domain_net": 5}
"""Those that train."""


def dataset(name: str, x: torch.Tensor) -> DeviceDataset:
    """These inputs, with as many classes and domains as the data set of that name has."""
    numbers, given = torch.arange(len(x)), dict[str, Any]()
    if domains := DOMAINS.get(name):
        given = {"domains": numbers % domains, "domain_names": tuple(map(str, range(domains)))}
    classes = ("cat", *(f"class_{k}" for k in range(1, CLASSES.get(name, 10))))
    return DeviceDataset(x, numbers % len(classes), classes, **given)


def small_data(function: Callable[..., Any]) -> Callable[..., tuple[DeviceDataset, DeviceDataset]]:
    """A data source with the function's name and options."""
    name = function.__name__

    def random(samples: int, channels: int) -> DeviceDataset:
        size = samples, channels, PIXELS, PIXELS
        x = torch.randint(0, 256, size, generator=torch.Generator().manual_seed(0))
        return dataset(name, x.to(torch.uint8))

    @wraps(function)
    def source(*_: Any, channels: int = 1, **__: Any) -> tuple[DeviceDataset, DeviceDataset]:
        channels = channels if name in GRAY else 3
        return random(3450, channels), random(345, channels)

    source.__module__ = __name__
    return source


def small_model(function: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
    """A network with the function's name and options: two linear layers."""

    @wraps(function)
    def network(classes: int, channels: int = 3, inputs: int = 0, **_: Any) -> nn.Module:
        return models.mlp(inputs or channels * PIXELS**2, classes, (4,))

    network.__module__ = __name__
    return network


DATA_SETS = "cifar10 cifar100 mnist emnist_letters_aj svhn cinic10 pathmnist tissuemnist"
DATA_SETS += " office_home domain_net"
NETWORKS = "lenet resnet18_gn mlp fedavg_cnn vgg11 resnet18_bn sl_vit vit_tiny vit_b32 resnet18"
SMALL_DATA = [small_data(getattr(sources, name)) for name in DATA_SETS.split()]
SMALL_MODELS = [small_model(getattr(models, name)) for name in NETWORKS.split()]
globals().update({f.__name__: f for f in [*SMALL_DATA, *SMALL_MODELS]})  # a run finds them by name

if __name__ == "__main__":
    Experiment(SMALL_DATA, SMALL_MODELS, doc=__doc__).run()
