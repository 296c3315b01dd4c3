"""Networks of the package timm, by name."""

from torch import nn

from fl_lightning.errors import UserError


def timm(
    classes: int, channels: int, architecture: str = "resnet18", pretrained: bool = False
) -> nn.Module:
    """A network of timm (https://huggingface.co/docs/timm), which `pip install timm` brings.

    Args:
        architecture: Its name in timm, such as convnext_atto.
        pretrained: Begin with the weights that timm downloads.
    """
    try:
        from timm import create_model
    except ImportError as error:
        raise UserError("timm is not installed: pip install timm") from error
    return create_model(architecture, pretrained=pretrained, num_classes=classes, in_chans=channels)
