"""The vision transformer for small data sets of FedSOL."""

import math

import torch
from torch import Tensor, nn

from fl_lightning.errors import UserError

_WIDTH, _DEPTH, _HEADS, _HEAD_WIDTH = 192, 9, 12, 64
_GRID = 4


def sl_vit(classes: int = 10, channels: int = 3, size: int = 32) -> nn.Module:
    """FedSOL's SL-ViT: a grid of 4x4 patches, shifted patch tokens; none attends to itself.

    Width 192, depth 9, 12 heads of 64, pre-norm, no dropout; the head `mlp_head` is LayerNorm and a
    linear layer on the class token. 6,176,275 parameters for 32x32 images of 10 classes, 6,132,432
    for 28x28 of 9. PyTorch's default initialization; class token and positions are N(0, 1).

    Lee et al., 2021, arXiv:2112.13492; Lee et al., CVPR 2024 (FedSOL), arXiv:2308.12532 for sizes.

    Args:
        size: Height and width of the image, a multiple of 4.
    """
    if size < _GRID or size % _GRID:
        raise UserError(
            f"size is {size}, but SL-ViT cuts images into a grid of 4x4: scale to a multiple of 4"
        )
    return _SLViT(classes, channels, size)


class _SLViT(nn.Module):
    def __init__(self, classes: int, channels: int, size: int):
        super().__init__()
        self.tokens = _ShiftedPatches(channels, size // _GRID)
        self.class_token = nn.Parameter(torch.randn(1, 1, _WIDTH))
        self.positions = nn.Parameter(torch.randn(1, 1 + _GRID * _GRID, _WIDTH))
        self.blocks = nn.Sequential(*(_Block() for _ in range(_DEPTH)))
        self.mlp_head = nn.Sequential(nn.LayerNorm(_WIDTH), nn.Linear(_WIDTH, classes))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([self.class_token.expand(len(x), -1, -1), self.tokens(x)], dim=1)
        return self.mlp_head(self.blocks(x + self.positions)[:, 0])


class _ShiftedPatches(nn.Module):
    """Tokens of patches that also see the image moved by one pixel to each side."""

    def __init__(self, channels: int, patch: int):
        super().__init__()
        inputs = 5 * channels * patch * patch
        self.patch, self.norm, self.linear = patch, nn.LayerNorm(inputs), nn.Linear(inputs, _WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        sides = (1, -1, 0, 0), (-1, 1, 0, 0), (0, 0, 1, -1), (0, 0, -1, 1)
        x = torch.cat([x, *(nn.functional.pad(x, side) for side in sides)], dim=1)
        grid = _GRID, self.patch
        x = x.unflatten(-1, grid).unflatten(-3, grid)  # b, c, rows, p, columns, q
        x = x.permute(0, 2, 4, 3, 5, 1).flatten(3).flatten(1, 2)
        return self.linear(self.norm(x))


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(_WIDTH), _LocalityAttention()
        self.norm2 = nn.LayerNorm(_WIDTH)
        self.mlp = nn.Sequential(nn.Linear(_WIDTH, _WIDTH), nn.GELU(), nn.Linear(_WIDTH, _WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class _LocalityAttention(nn.Module):
    """Self-attention with a learned temperature, in which no token sees itself."""

    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.tensor(-math.log(_HEAD_WIDTH) / 2))
        self.qkv = nn.Linear(_WIDTH, 3 * _HEADS * _HEAD_WIDTH, bias=False)
        self.out = nn.Linear(_HEADS * _HEAD_WIDTH, _WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, _HEADS, _HEAD_WIDTH)).permute(2, 0, 3, 1, 4)
        similarity = q @ k.transpose(-1, -2) * self.temperature.exp()
        # not a buffer: those are sent and averaged
        itself = torch.eye(x.shape[1], dtype=torch.bool, device=x.device)
        attention = similarity.masked_fill(itself, -math.inf).softmax(-1)
        return self.out((attention @ v).transpose(1, 2).flatten(2))
