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

    padding: tuple[int, ...]  # not "same" or "valid"

    def forward(self, x: Tensor) -> Tensor:
        """The convolution of (b, channels, height, width)."""
        kernel, stride, padding = self.kernel_size[0], self.stride[0], self.padding[0]
        rows, columns = (_used_taps(size, kernel, stride, padding) for size in x.shape[-2:])
        if (len(rows), len(columns)) == self.kernel_size:
            return super().forward(x)
        weight = _Taps.apply(cast_of(self.weight), rows, columns)
        remaining = padding - rows.start, padding - columns.start
        return F.conv2d(x, weight, self.bias, self.stride, remaining)


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
    """Turn a model's convolutions into `TrimmedConv2d`, in place.

    They have square kernels, the same stride and zero padding on all sides, one group, and no
    dilation, as in torchvision's ResNets.
    """
    for module in model.modules():
        if type(module) is nn.Conv2d:
            module.__class__ = TrimmedConv2d  # keeps parameters, names and hooks
    return model


@cache
def _used_taps(size: int, kernel: int, stride: int, padding: int) -> range:
    """The taps of a kernel along one side, without those at both ends that never meet a pixel."""

    def outputs(kernel: int, padding: int) -> int:
        return (size + 2 * padding - kernel) // stride + 1

    starts = [i * stride - padding for i in range(outputs(kernel, padding))]
    meeting = [tap for tap in range(kernel) if any(0 <= start + tap < size for start in starts)]
    taps = range(meeting[0], meeting[-1] + 1) if meeting else range(kernel)
    left = padding - taps.start
    # padding is the same at both ends: without the outer taps the number of outputs could change
    return taps if left >= 0 and outputs(len(taps), left) == len(starts) else range(kernel)
