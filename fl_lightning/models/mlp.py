"""Fully connected networks."""

from collections import OrderedDict

from torch import nn

from fl_lightning.core.constraints import PositiveInt, checked


@checked
def mlp(inputs: int, classes: int, hidden: tuple[PositiveInt, ...] = (200, 200)) -> nn.Sequential:
    """ReLU layers on the flattened input, then `classifier`; PyTorch's default initialization.

    FedDyn and FedSSG use 784-200-200-10 on MNIST (199,210 parameters) and 784-100-100-10 on
    EMNIST-L (89,610).

    Args:
        inputs: Number of features of a flattened sample.
        hidden: Widths of the hidden layers `hidden1`, `hidden2`, ...; empty for a linear model.
    """
    layers: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
    for number, width in enumerate(hidden, start=1):
        layers[f"hidden{number}"] = nn.Linear(inputs, width)
        layers[f"relu{number}"] = nn.ReLU()
        inputs = width
    layers["classifier"] = nn.Linear(inputs, classes)
    return nn.Sequential(layers)
