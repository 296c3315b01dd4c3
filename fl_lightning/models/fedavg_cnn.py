"""The convolutional network of FedAvg, as FedSOL trains it."""

from collections import OrderedDict

from torch import nn


def fedavg_cnn(classes: int = 10, channels: int = 3, size: int = 32) -> nn.Sequential:
    """Two padded 5x5 convolutions with ReLU and 2x2 max-pooling, a layer of 512, `classifier`.

    PyTorch's default initialization. With 10 classes and three channels (FedSOL repeats MNIST's
    one) 2,156,490 parameters on 32x32 images, 1,664,970 on 28x28.

    McMahan et al., AISTATS 2017, arXiv:1602.05629; Lee et al., CVPR 2024 (FedSOL), arXiv:2308.12532
    for the widths.
    """
    side = size // 2 // 2
    # pooling before ReLU gives the same numbers and gradients, with a quarter of the work for ReLU
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
