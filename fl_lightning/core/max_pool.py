"""Max-pooling that stacked clients compute together, as further channels.

`vmap` would make them further samples. Around convolutions, which have them as channels, it copies
each activation there and back.
"""

from typing import Any

import torch
from torch import Tensor

from fl_lightning.core.folding import folded

Options = tuple[Any, ...]
"""Kernel size, stride, padding, dilation, and whether sizes are rounded up."""


def stacked_max_pool2d(x: Tensor, options: Options) -> Tensor:
    """The maxima in windows of (n, channels, height, width), which can be differentiated once."""
    return _MaxPool.apply(x, options)[0]


class _MaxPool(torch.autograd.Function):
    """The maxima and where they are."""

    @staticmethod
    def forward(x: Tensor, options: Options) -> tuple[Tensor, Tensor]:
        return torch.ops.aten.max_pool2d_with_indices(x, *options)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        x, ctx.options = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, output[1])

    @staticmethod
    def backward(ctx: Any, g: Tensor, _: Any) -> tuple[Any, ...]:
        return _Backward.apply(g, *ctx.saved_tensors, ctx.options), None

    @staticmethod
    def vmap(info: Any, dims: Any, x: Tensor, options: Options) -> tuple[Any, Any]:
        b = info.batch_size
        out = _MaxPool.apply(folded(x, b, dims[0], 1), options)
        return tuple(t.unflatten(1, (b, -1)) for t in out), (1, 1)


class _Backward(torch.autograd.Function):
    """The gradient of the input."""

    @staticmethod
    def forward(g: Tensor, x: Tensor, indices: Tensor, options: Options) -> Tensor:
        return torch.ops.aten.max_pool2d_with_indices_backward(g, x, *options, indices)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Nothing: an oracle's gradient cannot be differentiated again."""

    @staticmethod
    def vmap(info: Any, dims: Any, *inputs: Any) -> tuple[Tensor, int]:
        b, (*tensors, options) = info.batch_size, inputs
        rows = (folded(t, b, dim, 1) for t, dim in zip(tensors, dims, strict=False))
        return _Backward.apply(*rows, options).unflatten(1, (b, -1)), 1
