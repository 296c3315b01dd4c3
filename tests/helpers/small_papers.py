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


def small_data(function: Callable[..., Any]) -> Callable[..., tuple[DeviceDataset, DeviceDataset]]:
    """A data source with the function's name and options."""
    name = function.__name__

    def random(samples: int, channels: int) -> DeviceDataset:
        size, classes = (samples, channels, PIXELS, PIXELS), CLASSES.get(name, 10)
        x = torch.randint(0, 256, size, generator=torch.Generator().manual_seed(0))
        given: dict[str, Any] = {}
        if domains := DOMAINS.get(name):
            given["domains"] = torch.arange(samples) % domains
            given["domain_names"] = tuple(map(str, range(domains)))
        labels = torch.arange(samples) % classes
        names = ("cat", *(f"class_{k}" for k in range(1, classes)))
        return DeviceDataset(x.to(torch.uint8), labels, names, **given)

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


cifar10 = small_data(sources.cifar10)
cifar100 = small_data(sources.cifar100)
mnist = small_data(sources.mnist)
emnist_letters_aj = small_data(sources.emnist_letters_aj)
svhn = small_data(sources.svhn)
cinic10 = small_data(sources.cinic10)
pathmnist = small_data(sources.pathmnist)
tissuemnist = small_data(sources.tissuemnist)
office_home = small_data(sources.office_home)
domain_net = small_data(sources.domain_net)
lenet = small_model(models.lenet)
resnet18_gn = small_model(models.resnet18_gn)
mlp = small_model(models.mlp)
fedavg_cnn = small_model(models.fedavg_cnn)
vgg11 = small_model(models.vgg11)
resnet18_bn = small_model(models.resnet18_bn)
sl_vit = small_model(models.sl_vit)
vit_b32 = small_model(models.vit_b32)
vit_tiny = small_model(models.vit_tiny)
resnet18 = small_model(models.resnet18)

if __name__ == "__main__":
    Experiment(
        data=[
            cifar10,
            cifar100,
            mnist,
            emnist_letters_aj,
            svhn,
            cinic10,
            pathmnist,
            tissuemnist,
            office_home,
            domain_net,
        ],
        models=[
            lenet,
            resnet18_gn,
            mlp,
            fedavg_cnn,
            vgg11,
            resnet18_bn,
            sl_vit,
            vit_tiny,
            vit_b32,
            resnet18,
        ],
        doc=__doc__,
    ).run()
