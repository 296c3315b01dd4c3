"""A graph pass that turns 2x2 max-pooling into arithmetic, which the compiler vectorizes.

PyTorch's max-pooling writes an index of eight bytes for each result, and its backward pass clears
the gradient before it scatters into it; the compiler's own pooling is slower still. Here an offset
of one byte marks the largest of four, and the gradient is written once: the same bits, sooner.
Pooling of several stacked clients stays as it is, as `vmap` reshapes its indices between the
passes.
"""

from typing import Any, cast

import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

FORWARD = torch.ops.aten.max_pool2d_with_indices.default
BACKWARD = torch.ops.aten.max_pool2d_with_indices_backward.default
DEFAULTS: list[Any] = [[], [], [0, 0], [1, 1], False]
"""Kernel, stride (the kernel's if empty), padding, dilation, ceil_mode."""


def with_vector_pooling(graph: fx.GraphModule, examples: list[Tensor]) -> fx.GraphModule:
    """Rewrite 2x2 max-pooling, forward and backward, as elementwise operations.

    `examples` are arguments with the shapes of the real ones.
    """
    if not any(_halves(node) for node in graph.graph.nodes):
        return graph
    return make_fx(_Rewritten(graph).run, tracing_mode="fake", _allow_non_fake_inputs=True)(
        *examples
    )


class _Rewritten(fx.Interpreter):
    def run_node(self, n: fx.Node) -> Any:
        if _halves(n):
            x: Any = n.args[0]
            return _pool(self.env[x])
        if n.target is BACKWARD:
            gradient, *_, indices = cast(list[fx.Node], n.args)
            if _halves(cast(fx.Node, indices.args[0])):
                return _spread(self.env[gradient], self.env[indices])
        return super().run_node(n)


def _halves(node: fx.Node) -> bool:
    """Whether a node is 2x2 max-pooling whose indices only its backward pass reads."""
    if node.target is not FORWARD:
        return False
    x, *window = cast(list[Any], node.args)
    kernel, stride, *rest = [*window, *DEFAULTS[len(window) :]]
    if kernel != [2, 2] or stride not in ([], [2, 2]) or rest != DEFAULTS[2:]:
        return False
    height, width = x.meta["val"].shape[-2:]
    indices = [user for result in node.users if result.args[1] == 1 for user in result.users]
    return bool(height % 2 == width % 2 == 0) and all(user.target is BACKWARD for user in indices)


def _pool(x: Tensor) -> tuple[Tensor, Tensor]:
    """(N, C, 2 h, 2 w) to the largest of each window, (N, C, h, w), and its offset in it, int8."""
    # N h 2 w 2 C: channels vary fastest
    windows = x.movedim(-3, -1).unflatten(-2, (-1, 2)).unflatten(-4, (-1, 2))
    largest = windows[..., 0, :, 0, :]
    offset = torch.zeros_like(largest, dtype=torch.float32)
    for k in 1, 2, 3:
        other = windows[..., k // 2, :, k % 2, :]
        larger = (other > largest) | (other != other)  # the first of equal ones; NaN before all
        largest, offset = torch.where(larger, other, largest), torch.where(larger, float(k), offset)
    return largest.movedim(-1, -3), offset.to(torch.int8).movedim(-1, -3)


def _spread(gradient: Tensor, offset: Tensor) -> Tensor:
    """The gradient of `_pool`'s argument."""
    position = torch.arange(4, dtype=torch.float32, device=offset.device).view(2, 1, 2, 1)
    # N h 1 w 1 C
    gradient, offset = (t.movedim(-3, -1).unsqueeze(-2).unsqueeze(-4) for t in (gradient, offset))
    windows = torch.where(offset.to(torch.float32) == position, gradient, gradient.new_zeros(()))
    return windows.flatten(-3, -2).flatten(-4, -3).movedim(-1, -3)
