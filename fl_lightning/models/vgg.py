"""VGG-11 for small images."""

from collections import OrderedDict
from math import sqrt

from torch import nn

from fl_lightning.errors import UserError

_STAGES = (64,), (128,), (256, 256), (512, 512), (512, 512)


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
        # pooling before ReLU gives the same numbers and gradients, with a quarter of ReLU's work
        layers.move_to_end(f"relu{number}")
    layers["flatten"] = nn.Flatten()
    for hidden in (1, 2):
        layers[f"hidden{hidden}"], layers[f"relu{number + hidden}"] = nn.Linear(512, 512), nn.ReLU()
    layers["classifier"] = nn.Linear(512, classes)
    return nn.Sequential(layers)
