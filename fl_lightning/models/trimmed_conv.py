"""Convolutions of images that are smaller than the kernel."""

from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fl_lightning.core.mixed_precision import cast_of


class TrimmedConv2d(nn.Conv2d):
    """`nn.Conv2d` without the part of its kernel that only meets padding.

    ResNet-18 with ImageNet's stem shrinks 32x32 pixels to one in its last stage. Only the center of
    the 3x3 kernels there, three quarters of all weights, meets a pixel. Outputs and gradients are
    those of `nn.Conv2d`: the other weights have gradient zero.
    """

    padding: tuple[int, ...]  # not "same" or "valid": see `with_trimmed_convs`

    def forward(self, x: Tensor) -> Tensor:
        """The convolution of (b, channels, height, width)."""
        rows, columns = (
            _used_taps(size, self.kernel_size[i], self.stride[i], self.padding[i], self.dilation[i])
            for i, size in enumerate(x.shape[-2:])
        )
        if (len(rows), len(columns)) == self.kernel_size:
            return super().forward(x)
        weight = _Taps.apply(cast_of(self.weight), rows, columns)
        padding = (
            self.padding[0] - rows.start * self.dilation[0],
            self.padding[1] - columns.start * self.dilation[1],
        )
        return F.conv2d(x, weight, self.bias, self.stride, padding, self.dilation, self.groups)


class _Taps(torch.autograd.Function):
    """A kernel's taps in these rows and columns. Of two slices each would pad the gradient."""

    generate_vmap_rule = True

    @staticmethod
    def forward(weight: Tensor, rows: range, columns: range) -> Tensor:
        return weight[:, :, rows.start : rows.stop, columns.start : columns.stop]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        weight, rows, columns = inputs
        height, width = weight.shape[2:]
        ctx.padding = columns.start, width - columns.stop, rows.start, height - rows.stop

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Any, ...]:
        return F.pad(g, ctx.padding), None, None


def with_trimmed_convs(model: nn.Module) -> nn.Module:
    """Turn a model's zero-padded convolutions into `TrimmedConv2d`, in place."""
    for module in model.modules():
        plain = type(module) is nn.Conv2d and module.padding_mode == "zeros"
        if plain and not isinstance(module.padding, str):
            module.__class__ = TrimmedConv2d  # keeps parameters, names and hooks
    return model


@cache
def _used_taps(size: int, kernel: int, stride: int, padding: int, dilation: int) -> range:
    """The taps of a kernel along one side, without those at both ends that never meet a pixel."""

    def outputs(kernel: int, padding: int) -> int:
        return (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1

    starts = [i * stride - padding for i in range(outputs(kernel, padding))]
    meeting = [
        tap for tap in range(kernel) if any(0 <= start + tap * dilation < size for start in starts)
    ]
    taps = range(meeting[0], meeting[-1] + 1) if meeting else range(kernel)
    left = padding - taps.start * dilation
    # padding is the same at both ends: without the outer taps the number of outputs could change
    return taps if left >= 0 and outputs(len(taps), left) == len(starts) else range(kernel)
