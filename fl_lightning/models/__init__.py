"""The papers' networks for images, and small ones for texts.

Each function returns a fresh module from (b, channels, size, size) to (b, classes), or from tokens
(b, t) to (b, t, vocabulary), initialized from PyTorch's global generator. These sizes follow
from the data.
"""

from fl_lightning.models.fedavg_cnn import fedavg_cnn as fedavg_cnn
from fl_lightning.models.huggingface import huggingface as huggingface
from fl_lightning.models.lenet import lenet as lenet
from fl_lightning.models.mlp import mlp as mlp
from fl_lightning.models.resnet import resnet18 as resnet18
from fl_lightning.models.resnet import resnet18_bn as resnet18_bn
from fl_lightning.models.resnet import resnet18_gn as resnet18_gn
from fl_lightning.models.sl_vit import sl_vit as sl_vit
from fl_lightning.models.text import char_lstm as char_lstm
from fl_lightning.models.text import char_transformer as char_transformer
from fl_lightning.models.timm_model import timm as timm
from fl_lightning.models.vgg import vgg11 as vgg11
from fl_lightning.models.vit import vit_b32 as vit_b32
from fl_lightning.models.vit import vit_tiny as vit_tiny
