"""The papers' convolutional networks without shortcuts and normalization.

Pooling stands before ReLU: this gives the same numbers and gradients, with a quarter of the work.
"""

from collections import OrderedDict
from math import sqrt

from torch import nn

from fl_lightning.errors import UserError

_STAGES = (64,), (128,), (256, 256), (512, 512), (512, 512)
"""Widths of the convolutions of `vgg11`; pooling ends each stage."""


def fedavg_cnn(classes: int = 10, channels: int = 3, size: int = 32) -> nn.Sequential:
    """Two padded 5x5 convolutions with ReLU and 2x2 max-pooling, a layer of 512, `classifier`.

    PyTorch's default initialization. With 10 classes and three channels (FedSOL repeats MNIST's
    one) 2,156,490 parameters on 32x32 images, 1,664,970 on 28x28.

    McMahan et al., AISTATS 2017, arXiv:1602.05629; Lee et al., CVPR 2024 (FedSOL), arXiv:2308.12532
    for the widths.
    """
    side = size // 2 // 2
    layers: OrderedDict[str, nn.Module] = OrderedDict(
        conv1=nn.Conv2d(channels, 32, 5, padding=2),
        pool1=nn.MaxPool2d(2),
        relu1=nn.ReLU(),
        conv2=nn.Conv2d(32, 64, 5, padding=2),
        pool2=nn.MaxPool2d(2),
        relu2=nn.ReLU(),
        flatten=nn.Flatten(),
        hidden=nn.Linear(64 * side * side, 512),
        relu3=nn.ReLU(),
        classifier=nn.Linear(512, classes),
    )
    return nn.Sequential(layers)


def lenet(classes: int = 10, channels: int = 3, size: int = 32) -> nn.Sequential:
    """Two 5x5 convolutions with ReLU and 2x2 max-pooling, layers of 384 and 192, `classifier`.

    No padding, no normalization, PyTorch's default initialization; 797,962 parameters on CIFAR-10,
    815,332 on CIFAR-100.
    """
    side = ((size - 4) // 2 - 4) // 2
    if side < 1:
        raise UserError(f"size is {size}, but LeNet needs images of at least 16x16: choose mlp")
    layers: OrderedDict[str, nn.Module] = OrderedDict(
        conv1=nn.Conv2d(channels, 64, 5),
        pool1=nn.MaxPool2d(2),
        relu1=nn.ReLU(),
        conv2=nn.Conv2d(64, 64, 5),
        pool2=nn.MaxPool2d(2),
        relu2=nn.ReLU(),
        flatten=nn.Flatten(),
        hidden1=nn.Linear(64 * side * side, 384),
        relu3=nn.ReLU(),
        hidden2=nn.Linear(384, 192),
        relu4=nn.ReLU(),
        classifier=nn.Linear(192, classes),
    )
    return nn.Sequential(layers)


def vgg11(classes: int = 10, channels: int = 3, size: int = 32) -> nn.Sequential:
    """FedSOL's VGG-11 without normalization and dropout; layers of 512 and 512, then `classifier`.

    Five 2x2 max-poolings shrink 32x32 pixels to one; smaller images are first scaled up to 32x32
    (nearest neighbor). Convolutions are initialized as N(0, 2 / (k^2 * outputs)) with bias 0,
    linear layers by PyTorch's default. 9,750,922 parameters.

    Simonyan and Zisserman, ICLR 2015, arXiv:1409.1556; Lee et al., CVPR 2024 (FedSOL),
    arXiv:2308.12532 for head and initialization.

    Args:
        size: Height and width of the image, 32 at most.
    """
    if not 1 <= size <= 32:
        raise UserError(f"size is {size}, but VGG-11 takes images of at most 32x32: scale down")
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    if size < 32:
        layers["upsample"] = nn.Upsample(size=32)
    number, inputs = 0, channels
    for stage, widths in enumerate(_STAGES, start=1):
        for width in widths:
            number += 1
            conv = nn.Conv2d(inputs, width, 3, padding=1)
            nn.init.normal_(conv.weight, std=sqrt(2 / (3 * 3 * width)))
            nn.init.zeros_(conv.bias)  # type: ignore[arg-type]
            layers[f"conv{number}"], layers[f"relu{number}"] = conv, nn.ReLU()
            inputs = width
        layers[f"pool{stage}"] = nn.MaxPool2d(2)
        layers.move_to_end(f"relu{number}")  # behind the pooling
    layers["flatten"] = nn.Flatten()
    for hidden in (1, 2):
        layers[f"hidden{hidden}"], layers[f"relu{number + hidden}"] = nn.Linear(512, 512), nn.ReLU()
    layers["classifier"] = nn.Linear(512, classes)
    return nn.Sequential(layers)
