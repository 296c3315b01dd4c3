"""ResNets: with group norm, with batch norm, and pretrained."""

from collections.abc import Callable
from functools import partial

from torch import nn

from fl_lightning.models.group_norm import GroupNorm
from fl_lightning.models.pretrained import load_body
from fl_lightning.models.trimmed_conv import with_trimmed_convs


def resnet18_gn(classes: int = 10, channels: int = 3) -> nn.Module:
    """ResNet-18 with GroupNorm of two groups instead of BatchNorm, as in FL-Simulator, FedLESAM.

    The stem is that of ImageNet (7x7 of stride 2, then max-pooling), on 32x32 images too.
    Torchvision's initialization and names; the head is `fc`. 11,181,642 parameters for 10 classes,
    11,227,812 for 100.

    He et al., CVPR 2016, arXiv:1512.03385; Hsieh et al., ICML 2020, arXiv:1910.00189 for GroupNorm.
    """
    return _imagenet_stem(classes, channels, partial(GroupNorm, 2))


def resnet18(classes: int = 65, channels: int = 3, weights: str | None = "imagenet") -> nn.Module:
    """Torchvision's ResNet-18, pretrained; BatchNorm's statistics are averaged like the weights.

    Torchvision's names; the head `fc` is always fresh. 11,209,857 parameters for OfficeHome's 65
    classes, 11,353,497 for DomainNet's 345.

    He et al., CVPR 2016, arXiv:1512.03385.

    Args:
        channels: Channels of the image; pretrained weights take 3.
        weights: `imagenet` for torchvision's download, the path of a file with the `state_dict` of
            torchvision's ResNet-18 (its `fc` is not read), or `none` for random ones.
    """
    from torchvision.models import ResNet18_Weights

    model = _imagenet_stem(classes, channels, nn.BatchNorm2d)
    if weights is not None:
        load_body(model, "fc", weights, ResNet18_Weights.IMAGENET1K_V1)
    return model


def resnet18_bn(classes: int = 10, channels: int = 3, statistics: bool = False) -> nn.Module:
    """ResNet-18 for small images, with BatchNorm: FedSOL's, and FedMuon's with `statistics`.

    The stem is one 3x3 convolution of stride 1 without pooling. Without statistics test batches are
    normalized with their own ones too, so a prediction depends on its batch; scores take the test
    samples in a fixed random order. A batch of a single image needs more than 8x8 pixels, or
    BatchNorm has one value only. PyTorch's default initialization; the head is `fc`. 11,173,962
    parameters for 10 classes.

    He et al., CVPR 2016, arXiv:1512.03385; Lee et al., CVPR 2024 (FedSOL), arXiv:2308.12532; Liu et
    al., 2025 (FedMuon), arXiv:2510.27403.

    Args:
        statistics: Keep running statistics, which are averaged like the weights.
    """
    model = _resnet(classes, partial(nn.BatchNorm2d, track_running_stats=statistics))
    model.conv1 = nn.Conv2d(channels, 64, kernel_size=3, padding=1, bias=False)
    model.maxpool = nn.Identity()
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            # torchvision's weights are larger, which under BatchNorm slows learning down
            module.reset_parameters()
    return model


def _imagenet_stem(classes: int, channels: int, norm: Callable[..., nn.Module]) -> nn.Module:
    model = _resnet(classes, norm)
    if channels != 3:
        model.conv1 = nn.Conv2d(channels, 64, kernel_size=7, stride=2, padding=3, bias=False)
        nn.init.kaiming_normal_(model.conv1.weight, mode="fan_out", nonlinearity="relu")
    return with_trimmed_convs(model)


def _resnet(classes: int, norm: Callable[..., nn.Module]) -> nn.Module:
    from torchvision.models.resnet import BasicBlock, ResNet

    model: nn.Module = ResNet(BasicBlock, [2, 2, 2, 2], num_classes=classes, norm_layer=norm)
    for module in model.modules():
        if isinstance(module, nn.ReLU):
            module.inplace = False  # recorded activations must not change
    return model
