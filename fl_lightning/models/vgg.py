"""VGG-11 for small images."""

from collections import OrderedDict
from math import sqrt

from torch import nn

_STAGES = (64,), (128,), (256, 256), (512, 512), (512, 512)


def vgg11(classes: int = 10, channels: int = 3, size: int = 32) -> nn.Sequential:
    """FedSOL's VGG-11: no normalisation, no dropout, then 512, 512 and `classifier`; 9,750,922 parameters.

    Five 2x2 max-poolings take 32x32 pixels to one, so smaller images are first scaled up to 32x32
    (nearest neighbour). Convolutions begin as N(0, 2 / (k^2 * outputs)) with bias 0, linear layers
    as PyTorch's default.

    Simonyan and Zisserman, 2015, arXiv:1409.1556; Lee et al., 2024 (FedSOL), arXiv:2308.12532 for
        head and start.

    Args:
        classes: number of outputs.
        channels: channels of the image.
        size: height and width of the image, 32 at most.

    Returns:
        A module from (b, channels, size, size) to (b, classes).

    Raises:
        ValueError: the image is larger than 32x32.
    """
    if not 1 <= size <= 32:
        raise ValueError(
            f"size is {size}; VGG-11 takes images of at most 32x32 pixels, scale yours down."
        )
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
        layers.move_to_end(
            f"relu{number}"
        )  # the same numbers and gradients, and a quarter of them for ReLU
    layers["flatten"] = nn.Flatten()
    for hidden in (1, 2):
        layers[f"hidden{hidden}"], layers[f"relu{number + hidden}"] = nn.Linear(512, 512), nn.ReLU()
    layers["classifier"] = nn.Linear(512, classes)
    return nn.Sequential(layers)
