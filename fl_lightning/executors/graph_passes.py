"""Graph passes: rewrites of a traced local step before it is compiled for a CPU.

Experimental: they and `Program` use private functions of PyTorch, which a new release may change.
`tests/executors/test_graph_passes.py` names the ones that are missing.
"""

from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

aten = torch.ops.aten

ELEMENTWISE = {
    aten.add.Tensor,
    aten.sub.Tensor,
    aten.mul.Tensor,
    aten.div.Tensor,
    aten.neg.default,
    aten.lerp.Scalar,
    aten.lerp.Tensor,
}


def with_late_concatenation(graph: fx.GraphModule) -> fx.GraphModule:
    """Replace every elementwise `f(cat(parts), v)` by `cat(f(part, slice of v), ...)`, in place.

    A backward pass ends in one gradient a parameter, and terms work on their flat vector, which the
    compiler would write out and read again. After this pass only the new weights are written, and a
    perturbed vector, which the next forward pass splits, is never put together. Other operations,
    such as norms, still get the whole vector.
    """
    for node in graph.graph.nodes:  # nodes inserted before a node's users are visited later
        if node.target is aten.cat.default and _is_flat(node):
            for user in list(node.users):
                if user.target in ELEMENTWISE and not user.kwargs:
                    if user.meta["val"].shape == node.meta["val"].shape:
                        _sink(graph.graph, node, user)
                elif user.target is aten.split_with_sizes.default:
                    _undo(node, user)
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return graph


def _is_flat(node: fx.Node, at: int = 1) -> bool:
    """Whether a node's dimension, its argument number `at`, is the last one: the flat vector's."""
    value: Any = node.args[0]
    ndim = (value if isinstance(value, fx.Node) else value[0]).meta["val"].ndim
    return (node.args[at] if len(node.args) > at else 0) in (-1, ndim - 1)


def _sink(graph: fx.Graph, cat: fx.Node, user: fx.Node) -> None:
    """Replace the user of a concatenation by a concatenation of its results for each part."""
    with graph.inserting_before(user):
        arguments = [_parts(graph, argument, _sizes(cat)) for argument in user.args]
        parts = [_call(graph, user.target, *each) for each in zip(*arguments, strict=True)]
        new = graph.call_function(aten.cat.default, (parts, -1))
    new.meta["val"] = user.meta["val"]
    user.replace_all_uses_with(new)
    graph.erase_node(user)


def _undo(cat: fx.Node, split: fx.Node) -> None:
    """Replace a split that undoes the concatenation by the parts."""
    parts: Any = cat.args[0]
    if _is_flat(split, at=2) and _sizes(cat) == list(split.args[1]):  # type: ignore[arg-type]
        for user in list(split.users):
            user.replace_all_uses_with(parts[user.args[1]])


def _sizes(cat: fx.Node) -> list[int]:
    """The lengths of the parts."""
    return [part.meta["val"].shape[-1] for part in cat.args[0]]  # type: ignore[union-attr]


def _parts(graph: fx.Graph, argument: Any, sizes: list[int]) -> list[Any]:
    """The argument for each part: its slice if it is as long as the vector, else itself."""
    value = argument.meta["val"] if isinstance(argument, fx.Node) else None
    if not isinstance(value, Tensor) or value.ndim == 0 or value.shape[-1] != sum(sizes):
        return [argument] * len(sizes)
    if argument.target is aten.cat.default and _is_flat(argument) and _sizes(argument) == sizes:
        return list(argument.args[0])
    stops = list(accumulate(sizes))
    return [
        _call(graph, aten.slice.Tensor, argument, -1, stop - n, stop)
        for n, stop in zip(sizes, stops, strict=True)
    ]


def _call(graph: fx.Graph, target: Any, *arguments: Any) -> fx.Node:
    """A node, with the shape and dtype of its value."""
    node = graph.call_function(target, arguments)
    node.meta["val"] = target(*(a.meta["val"] if isinstance(a, fx.Node) else a for a in arguments))
    return node


FORWARD = aten.max_pool2d_with_indices.default
BACKWARD = aten.max_pool2d_with_indices_backward.default
DEFAULTS: list[Any] = [[], [], [0, 0], [1, 1], False]
"""Kernel, stride (the kernel's if empty), padding, dilation, ceil_mode."""


def with_vector_pooling(graph: fx.GraphModule, examples: list[Tensor]) -> fx.GraphModule:
    """Rewrite 2x2 max-pooling as elementwise arithmetic, which the compiler vectorizes.

    PyTorch's max-pooling writes an index of eight bytes for each result, and its backward pass
    clears the gradient before it scatters into it; the compiler's own pooling is slower still. Here
    an offset of one byte marks the largest of four, and the gradient is written once: the same
    bits, sooner. Pooling of several stacked clients stays as it is, as `vmap` reshapes its indices
    between the passes.

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


LEAST = 2**20
"""Fewest multiplications of a product at which oneDNN's overhead, some 30 microseconds, pays."""

_library = torch.library.Library("fl_lightning", "DEF")
_library.define("product(Tensor a, Tensor b) -> Tensor")


def _product(a: Tensor, b: Tensor) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(a, b.t(), None, "none", [], "")


_library.impl("product", _product, "CPU")
_library.impl("product", lambda a, b: a.new_empty(a.shape[0], b.shape[1]), "Meta")


def with_onednn(graph: fx.GraphModule) -> fx.GraphModule:
    """Replace MKL's float32 matrix products by oneDNN's where MKL is slow, in place.

    PyTorch's CPU builds multiply float32 matrices with MKL, whose code for AVX-512 is for Intel's
    processors only. On an EPYC with AVX-512 oneDNN is 2.3 times as fast at 512x512x512, and twice
    as fast at the thin products of small batches. On one with AVX2 alone MKL is 1.1 to 1.9 times as
    fast at thin products. bf16 products are oneDNN's in any case.
    """
    if not _mkl_is_slow():
        return graph
    for node in list(graph.graph.nodes):
        if node.target not in (aten.mm.default, aten.addmm.default) or node.kwargs:
            continue
        *added, a, b = node.args
        left, right = a.meta["val"], b.meta["val"]
        if (left.dtype, left.device.type) != (torch.float32, "cpu"):
            continue
        if left.numel() * right.shape[1] < LEAST:
            continue
        with graph.graph.inserting_before(node):
            new = graph.graph.call_function(torch.ops.fl_lightning.product.default, (a, b))
            new.meta["val"] = node.meta["val"]  # it may be an operand of the next product
            for term in added:
                new = graph.graph.call_function(aten.add.Tensor, (new, term))
                new.meta["val"] = node.meta["val"]
        node.replace_all_uses_with(new)
        graph.graph.erase_node(node)
    graph.recompile()
    return graph


@cache
def _mkl_is_slow() -> bool:
    """Whether PyTorch uses MKL on a processor with AVX-512 not by Intel, and has oneDNN."""
    if torch.backends.cpu.get_cpu_capability() != "AVX512":
        return False
    try:
        intel = "GenuineIntel" in Path("/proc/cpuinfo").read_text()
    except OSError:
        return False
    has_onednn = hasattr(torch.ops.mkldnn, "_linear_pointwise")
    return not intel and torch.backends.mkl.is_available() and has_onednn
