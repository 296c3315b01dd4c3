"""Group normalization that stays in the input's number type, also of several clients at once.

On a GPU autocast computes `nn.GroupNorm` in float32, with a cast before and after each; and `vmap`
takes its backward pass apart into about thirty operations.
"""

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import vjp
from torch.nn import functional as F

from fl_lightning.core import device
from fl_lightning.core.stacked_functions import folded


class GroupNorm(nn.GroupNorm):
    """`nn.GroupNorm`, equal to rounding: of the same parameters, and the same `state_dict`.

    On a CPU, and without parameters, it is PyTorch's own function.
    """

    def forward(self, x: Tensor) -> Tensor:
        """The normalized input, (b, channels, ...), in its number type; statistics in float32."""
        stacked = torch._C._are_functorch_transforms_active()
        if not (self.affine and device.on_gpu(x) and (stacked or x.dtype != self.weight.dtype)):
            return super().forward(x)
        # outside of vmap autograd knows these operations, and a Function would cost host time
        norm = _Normalize.apply if stacked else _normalize
        return norm(x, self.weight, self.bias, self.num_groups, self.eps)[0]


def _normalize(
    x: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The result; and normalized input, mean, 1 / standard deviation for the backward pass."""
    zero, rows = _zero(weight), x.contiguous().view(len(x) * groups, -1)
    with torch.autocast(x.device.type, enabled=False):  # which would compute it in float32
        z, mean, rstd = torch.native_layer_norm(rows, rows.shape[1:], None, None, eps)
    z = z.view(x.shape)
    # scale and shift of each channel in one operation: batch normalization as in evaluation, of
    # mean 0 and variance 0 + 1
    y = torch.native_batch_norm(z, weight, bias, zero, zero, False, 0.0, 1.0)[0]
    return y, z, mean.view(len(x), groups), rstd.view(len(x), groups)


class _Normalize(torch.autograd.Function):
    """`_normalize` with a rule for `vmap`."""

    forward = staticmethod(_normalize)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        x, weight, _, ctx.groups, ctx.eps = inputs
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, weight, *output[1:])

    @staticmethod
    def backward(ctx: Any, g: Tensor, *_: Any) -> tuple[Any, ...]:
        return (*_Backward.apply(g, *ctx.saved_tensors, ctx.groups, ctx.eps), None, None)

    @staticmethod
    def vmap(
        info: Any, dims: Any, x: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float
    ) -> tuple[Any, Any]:
        b = info.batch_size
        rows = map(folded, (x, weight, bias), [b] * 3, dims, (1, 0, 0))
        out = _Normalize.apply(*rows, b * groups, eps)
        return tuple(t.unflatten(1, (b, -1)) for t in out), (1, 1, 1, 1)


class _Backward(torch.autograd.Function):
    """The gradients of input, weight and bias."""

    @staticmethod
    def forward(
        g: Tensor, x: Tensor, weight: Tensor, z: Tensor, mean: Tensor, rstd: Tensor, *_: Any
    ) -> tuple[Tensor, Tensor, Tensor]:
        zero, rows = _zero(weight), x.contiguous().view(mean.numel(), -1)
        of_z, of_weight, of_bias = torch.ops.aten.native_batch_norm_backward(
            g.contiguous(), z, weight, zero, zero, None, None, False, 1.0, [True] * 3
        )
        statistics = mean.view(-1, 1), rstd.view(-1, 1)
        of_x = torch.ops.aten.native_layer_norm_backward(
            of_z.view_as(rows), rows, rows.shape[1:], *statistics, None, None, [True, False, False]
        )[0]
        return of_x.view(x.shape), of_weight, of_bias

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.save_for_backward(*inputs[:3])
        ctx.groups, ctx.eps = inputs[6:]

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Any, ...]:
        def first(g: Tensor, x: Tensor, weight: Tensor) -> Any:
            """The same gradients by PyTorch's formula, which can be differentiated again."""

            def norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
                return F.group_norm(x, ctx.groups, weight, bias, ctx.eps)

            return vjp(norm, x, weight, torch.zeros_like(weight))[1](g)

        return (*vjp(first, *ctx.saved_tensors)[1](cotangents), *[None] * 5)

    @staticmethod
    def vmap(info: Any, dims: Any, *inputs: Any) -> tuple[Any, Any]:
        b, (*tensors, groups, eps) = info.batch_size, inputs
        at = 1, 1, 0, 1, 1, 1  # where channels or groups are
        rows = map(folded, tensors, [b] * 6, dims, at)
        of_x, *of_parameters = _Backward.apply(*rows, b * groups, eps)
        gradients = [t.unflatten(0, (b, -1)) for t in of_parameters]
        return (of_x.unflatten(1, (b, -1)), *gradients), (1, 0, 0)


def _zero(like: Tensor) -> Tensor:
    """Zeros that are made once; a trace makes its own, and must not leave a fake tensor here."""
    if type(like) not in (Tensor, nn.Parameter):
        return torch.zeros_like(like)
    stream = torch.cuda.current_stream(like.device).cuda_stream if like.is_cuda else 0
    return _kept_zero(len(like), like.dtype, like.device, stream)


@cache
def _kept_zero(size: int, dtype: torch.dtype, where: torch.device, stream: int) -> Tensor:
    """For one stream, since others would not wait until they are filled."""
    with torch.inference_mode(False):  # or no backward pass could use it
        return torch.zeros(size, dtype=dtype, device=where)
