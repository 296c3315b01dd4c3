"""Vision transformers of torchvision: the pretrained ViT-B/32 of FedLESAM, and ViT-Tiny."""

from functools import partial
from typing import Any

from torch import Tensor, nn

from fl_lightning.core.constraints import PositiveInt, checked
from fl_lightning.errors import UserError
from fl_lightning.models.pretrained import State, load_body


def vit_b32(
    classes: int = 65, channels: int = 3, size: int = 224, weights: str | None = "imagenet"
) -> nn.Module:
    """Torchvision's ViT-B/32, pretrained, as FedLESAM trains it on OfficeHome and DomainNet.

    Torchvision's names. `heads` is always a fresh linear layer with PyTorch's default
    initialization; torchvision's zeros would give the body no gradient under a frozen head. At
    224x224 87,505,217 parameters for OfficeHome's 65 classes, 87,720,537 for DomainNet's 345. At
    other sizes pretrained position embeddings are interpolated.

    Dosovitskiy et al., ICLR 2021, arXiv:2010.11929; Fan et al., ICML 2024 (FedLESAM),
    arXiv:2405.18890.

    Args:
        size: Height and width of the image, a multiple of 32.
        weights: `imagenet` for torchvision's download, the path of a file with the `state_dict` of
            torchvision's ViT-B/32 (its `heads` is not read), or `none` for random ones.
    """
    from torchvision.models import ViT_B_32_Weights, vit_b_32

    _check_images("ViT-B/32", channels, size, 32)
    model: Any = vit_b_32(image_size=size)
    model.heads.head = nn.Linear(model.hidden_dim, classes)
    if weights is not None:
        imagenet = ViT_B_32_Weights.IMAGENET1K_V1
        load_body(model, "heads", weights, imagenet, partial(_resize, size=size))
    return _with_plain_attention(model)


@checked
def vit_tiny(
    classes: int = 100,
    channels: int = 3,
    size: int = 32,
    patch: PositiveInt = 4,
    depth: PositiveInt = 12,
) -> nn.Module:
    """ViT-Tiny for small images: width 192, 3 heads, random weights.

    Torchvision's names and initialization, but the head `heads` has PyTorch's default one. For
    32x32 images of 100 classes 5,380,132 parameters, 2,710,948 at depth 6.

    Touvron et al., ICML 2021, arXiv:2012.12877 for width, depth and heads; Liu et al., 2025
    (FedMuon), arXiv:2510.27403.

    Args:
        size: Height and width of the image, a multiple of the patch's.
        patch: Height and width of a patch.
        depth: Number of blocks.
    """
    from torchvision.models import VisionTransformer

    _check_images("ViT-Tiny", channels, size, patch)
    model: Any = VisionTransformer(size, patch, depth, 3, 192, 768, num_classes=classes)
    model.heads.head = nn.Linear(model.hidden_dim, classes)
    return _with_plain_attention(model)


def _check_images(name: str, channels: int, size: int, patch: int) -> None:
    if channels != 3:
        raise UserError(f"channels is {channels}, but {name} takes RGB: repeat the channel")
    if size < patch or size % patch:
        raise UserError(
            f"size is {size}, but {name} has patches of {patch}x{patch}: scale to a multiple"
        )


def _with_plain_attention(model: Any) -> nn.Module:
    for block in model.encoder.layers:
        block.self_attention = _Attention(block.self_attention)
    return model


def _resize(state: State, size: int) -> State:
    from torchvision.models.vision_transformer import interpolate_embeddings

    if "encoder.pos_embedding" not in state:
        return state  # loading it reports that
    return interpolate_embeddings(size, 32, state)


class _Attention(nn.Module):
    """Self-attention as `nn.MultiheadAttention`, whose fused kernels have no rule for vmap."""

    def __init__(self, fused: nn.MultiheadAttention):
        super().__init__()
        self.heads = fused.num_heads
        self.in_proj_weight, self.in_proj_bias = fused.in_proj_weight, fused.in_proj_bias
        self.out_proj = fused.out_proj

    def forward(self, x: Tensor, *_: Any, **__: Any) -> tuple[Tensor, None]:
        """Attend as torchvision's block asks: `x` is query, key and value; no attention map."""
        qkv = nn.functional.linear(x, self.in_proj_weight, self.in_proj_bias)
        q, k, v = qkv.unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        attention = (q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5).softmax(-1)
        return self.out_proj((attention @ v).transpose(1, 2).flatten(2)), None
