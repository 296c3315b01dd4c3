"""The papers' networks.

Each function returns a fresh module from (b, channels, height, width) to (b, classes), initialized
from PyTorch's global generator. Images or weights that do not fit raise ValueError.

Imports nothing of the package.
"""

from fl_lightning.models.fedavg_cnn import fedavg_cnn
from fl_lightning.models.lenet import lenet
from fl_lightning.models.mlp import mlp
from fl_lightning.models.resnet import resnet10_bn, resnet18, resnet18_bn, resnet18_gn
from fl_lightning.models.sl_vit import sl_vit
from fl_lightning.models.vgg import vgg11
from fl_lightning.models.vit import vit_b32

__all__ = [
    "fedavg_cnn",
    "lenet",
    "mlp",
    "resnet10_bn",
    "resnet18",
    "resnet18_bn",
    "resnet18_gn",
    "sl_vit",
    "vgg11",
    "vit_b32",
]
