"""A graph pass that moves concatenations behind elementwise arithmetic."""

from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, fx

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
