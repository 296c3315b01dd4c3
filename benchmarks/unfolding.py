"""A candidate for GPUs: convolutions as patches and one matrix product.

Of that vmap makes a batched product, and a grouped convolution of `conv2d`.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function
from torch.overrides import TorchFunctionMode

Window = tuple[Sequence[int], Sequence[int]]
"""Height and width of a kernel, and its strides."""


class Unfolding(TorchFunctionMode):
    """Turns `conv2d`, as `nn.Conv2d` calls it, into a product; not grouped or dilated ones."""

    def __torch_function__(
        self, function: Any, types: Any, arguments: Any = (), named: Any = None
    ) -> Any:
        """Replace `conv2d`."""
        if function is F.conv2d and not named and tuple(arguments[5:]) == ((1, 1), 1):
            return convolution(*arguments[:5])
        return function(*arguments, **(named or {}))


def convolution(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: Sequence[int], padding: Sequence[int]
) -> Tensor:
    """`conv2d` with channels innermost in memory; in autocast's dtype from the patches on."""
    if torch.is_autocast_enabled(x.device.type):
        dtype = torch.get_autocast_dtype(x.device.type)
        x, weight = x.to(dtype), weight.to(dtype)
    out, _, *kernel = weight.shape
    x = F.pad(x.permute(0, 2, 3, 1), (0, 0, padding[1], padding[1], padding[0], padding[0]))
    product = _Patches.apply(x, (kernel, stride)).flatten(3) @ weight.permute(2, 3, 1, 0).reshape(
        -1, out
    )
    return (product if bias is None else product + bias).permute(0, 3, 1, 2)


def _patches(x: Tensor, window: Window) -> Tensor:
    (height, width), (down, right) = window
    return x.unfold(1, height, down).unfold(2, width, right).permute(0, 1, 2, 4, 5, 3).contiguous()


def _added_up(g: Tensor, shape: Sequence[int], window: Window) -> Tensor:
    (height, width), (down, right) = window
    between = *g.shape[:2], *shape[2:], height
    g = torch.ops.aten.unfold_backward(g.permute(0, 1, 2, 5, 3, 4), between, 2, width, right)
    return torch.ops.aten.unfold_backward(g, shape, 1, height, down)


def _merged(function: Callable[..., Tensor], x: Tensor, dim: int, *how: Any) -> tuple[Tensor, int]:
    """The rule for vmap, which PyTorch's own functions lack: clients' images are more images."""
    x = x.movedim(dim, 0)
    return function(x.flatten(0, 1), *how).unflatten(0, x.shape[:2]), 0


class _Patches(Function):
    """(n, height, width, channels) to (n, rows, columns, kernel height, kernel width, channels)."""

    @staticmethod
    def forward(x: Tensor, window: Window) -> Tensor:
        return _patches(x, window)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        ctx.shape, ctx.window = inputs[0].shape, inputs[1]

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        return _AddedUp.apply(g, ctx.shape[1:], ctx.window), None

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor, window: Window) -> tuple[Tensor, int]:
        return _merged(_Patches.apply, x, in_dims[0], window)


class _AddedUp(Function):
    """The gradient of patches to that of images (n, *shape)."""

    @staticmethod
    def forward(g: Tensor, shape: Sequence[int], window: Window) -> Tensor:
        return _added_up(g, (len(g), *shape), window)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        """Nothing: no second derivatives."""

    @staticmethod
    def vmap(
        info: Any, in_dims: Any, g: Tensor, shape: Sequence[int], window: Window
    ) -> tuple[Tensor, int]:
        return _merged(_AddedUp.apply, g, in_dims[0], shape, window)
