"""LeNet-5, the network of the LMO paper's reproduction."""

from collections import OrderedDict

from torch import nn


def lenet5(classes: int = 10, channels: int = 1, size: int = 28) -> nn.Sequential:
    """Two 5x5 convolutions with ReLU and 2x2 max-pooling, layers of 120 and 84; 61,706 parameters.

    The first one is padded by 2, as for the 32x32 images of LeCun et al. 1998.
    """
    side = (size // 2 - 4) // 2
    layers: OrderedDict[str, nn.Module] = OrderedDict(
        conv1=nn.Conv2d(channels, 6, 5, padding=2),
        pool1=nn.MaxPool2d(2),
        relu1=nn.ReLU(),
        conv2=nn.Conv2d(6, 16, 5),
        pool2=nn.MaxPool2d(2),
        relu2=nn.ReLU(),
        flatten=nn.Flatten(),
        hidden1=nn.Linear(16 * side * side, 120),
        relu3=nn.ReLU(),
        hidden2=nn.Linear(120, 84),
        relu4=nn.ReLU(),
        classifier=nn.Linear(84, classes),
    )
    return nn.Sequential(layers)
