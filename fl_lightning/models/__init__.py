"""The papers' networks: functions that return a fresh module, initialised from PyTorch's global generator."""

from fl_lightning.models.lenet import lenet
from fl_lightning.models.mlp import mlp
from fl_lightning.models.resnet import resnet18_gn

__all__ = ["lenet", "mlp", "resnet18_gn"]
