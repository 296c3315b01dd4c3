"""The convolutional network of FedDyn, FedDC and FedSSG."""

from collections import OrderedDict

from torch import nn

from fl_lightning.errors import UserError


def lenet(classes: int = 10, channels: int = 3, size: int = 32) -> nn.Sequential:
    """Two 5x5 convolutions with ReLU and 2x2 max-pooling, layers of 384 and 192, `classifier`.

    No padding, no normalization, PyTorch's default initialization; 797,962 parameters on CIFAR-10,
    815,332 on CIFAR-100.
    """
    side = ((size - 4) // 2 - 4) // 2
    if side < 1:
        raise UserError(f"size is {size}, but LeNet needs images of at least 16x16: choose mlp")
    # pooling before ReLU gives the same numbers and gradients, with a quarter of the work for ReLU
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
