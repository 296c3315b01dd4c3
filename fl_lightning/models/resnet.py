"""ResNet-18 with group normalisation."""

from functools import partial

from torch import nn


def resnet18_gn(classes: int = 10, channels: int = 3) -> nn.Module:
    """Torchvision's ResNet-18 with GroupNorm of two groups for every BatchNorm, as in FL-Simulator and FedLESAM.

    The stem is that of ImageNet (7x7 of stride 2, then max-pooling), on 32x32 images too. Torchvision's
    initialisation and names; the head is `fc`. 11,181,642 parameters for 10 classes, 11,227,812 for 100.

    He et al., 2016, arXiv:1512.03385; Hsieh et al., 2020, arXiv:1910.00189 for group normalisation.

    Args:
        classes: number of outputs.
        channels: channels of the image.

    Returns:
        A module from (b, channels, height, width) to (b, classes).
    """
    from torchvision.models import resnet18  # type: ignore[import-untyped]

    model: nn.Module = resnet18(num_classes=classes, norm_layer=partial(nn.GroupNorm, 2))
    if channels != 3:
        model.conv1 = nn.Conv2d(channels, 64, kernel_size=7, stride=2, padding=3, bias=False)
        nn.init.kaiming_normal_(model.conv1.weight, mode="fan_out", nonlinearity="relu")
    for module in model.modules():
        if isinstance(module, nn.ReLU):
            module.inplace = False  # a tapped activation must stay what it was
    return model
