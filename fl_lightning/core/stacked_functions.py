"""Functions that stacked clients compute together, as max-pooling and cross entropy.

`vmap` would make the clients of a max-pooling further samples. Around convolutions, which have them
as channels, it copies each activation there and back. It takes PyTorch's cross entropy apart into
26 operations, forward and back; here they are 12, with the same bits.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import TransformType, get_interpreter_stack
from torch.nn import functional as F
from torch.utils._pytree import tree_map

from fl_lightning.core import device

Options = tuple[Any, ...]
"""Kernel size, stride, padding, dilation, and whether sizes are rounded up."""


def is_stacked() -> bool:
    """Whether `vmap` runs: a function sees one of several clients."""
    return any(each.key() == TransformType.Vmap for each in transforms())


def transforms() -> Sequence[Any]:
    """The transforms of torch.func that run, from the outermost on."""
    return get_interpreter_stack() or ()


def folded(t: Tensor, clients: int, dim: int | None, at: int) -> Tensor:
    """The tensor of all clients, which lie in `dim`, or are equal, as part of dimension `at`.

    Each keeps its own weights so. Grouped convolutions leave their results in this layout, as
    further channels, so that nothing is copied there.
    """
    if dim is None:
        t = t.unsqueeze(at).expand(*t.shape[:at], clients, *t.shape[at:])
    else:
        t = t.movedim(dim, at)
    return t.flatten(at, at + 1)


def stacked_max_pool2d(x: Tensor, options: Options) -> Tensor:
    """The maxima in windows of (n, channels, height, width), which can be differentiated once."""
    return _MaxPool.apply(x, options)[0]


def mean_cross_entropy(scores: Tensor, y: Tensor, ignored: int) -> Tensor:
    """`F.cross_entropy(scores, y, ignore_index=ignored)`.

    On a GPU that of stacked clients can be differentiated once.
    """
    of_classes = y.ndim + 1 == scores.ndim == 2
    if not (of_classes and device.on_gpu(scores) and is_stacked()):
        return F.cross_entropy(scores, y, ignore_index=ignored)
    losses = _Losses.apply(F.log_softmax(scores, 1), y, ignored)
    return losses.sum() / (y != ignored).sum()


class _OfAll(torch.autograd.Function):
    """A function of tensors and an option, which `vmap` calls once for all clients.

    These lie in dimension `at`.
    """

    at: int

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Nothing: an oracle's gradient cannot be differentiated again."""

    @classmethod
    def vmap(cls, info: Any, dims: Any, *inputs: Any) -> tuple[Any, Any]:
        b, (*tensors, option) = info.batch_size, inputs
        rows = (folded(t, b, dim, cls.at) for t, dim in zip(tensors, dims, strict=False))
        out = cls.apply(*rows, option)
        clients = tree_map(lambda t: t.unflatten(cls.at, (b, -1)), out)
        return clients, tree_map(lambda _: cls.at, out)


class _MaxPool(_OfAll):
    """The maxima and where they are."""

    at = 1

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
        return _MaxPoolGradient.apply(g, *ctx.saved_tensors, ctx.options), None


class _MaxPoolGradient(_OfAll):
    at = 1

    @staticmethod
    def forward(g: Tensor, x: Tensor, indices: Tensor, options: Options) -> Tensor:
        return torch.ops.aten.max_pool2d_with_indices_backward(g, x, *options, indices)


class _Losses(_OfAll):
    """The loss of each sample."""

    at = 0

    @staticmethod
    def forward(log_probabilities: Tensor, y: Tensor, ignored: int) -> Tensor:
        return F.nll_loss(log_probabilities, y, ignore_index=ignored, reduction="none")

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        *tensors, ctx.ignored = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Any, ...]:
        return _LossesGradient.apply(g, *ctx.saved_tensors, ctx.ignored), None, None


class _LossesGradient(_OfAll):
    at = 0

    @staticmethod
    def forward(g: Tensor, log_probabilities: Tensor, y: Tensor, ignored: int) -> Tensor:
        weight = log_probabilities.new_empty(())  # of all, which only means read
        of_each = 0
        return torch.ops.aten.nll_loss_backward(
            g, log_probabilities, y, None, of_each, ignored, weight
        )
