"""Float32 matrix products of a traced program, by oneDNN where MKL leaves half of the processor unused.

PyTorch's CPU builds multiply float32 matrices with MKL, which has its fast code for Intel's
processors only: on an EPYC with AVX-512 oneDNN is 2.3 times as fast at 512x512x512, and twice at
the thin products of small batches (benchmarks/RESULTS.md). Products in bf16 are oneDNN's anyway.
"""

from functools import cache
from pathlib import Path

import torch
from torch import Tensor, fx

aten = torch.ops.aten

LEAST = 2**20
"""Multiplications from which on oneDNN's longer way to begin, some 30 microseconds, pays."""

_library = torch.library.Library("fl_lightning", "DEF")
_library.define("product(Tensor a, Tensor b) -> Tensor")


def _product(a: Tensor, b: Tensor) -> Tensor:
    product: Tensor = torch.ops.mkldnn._linear_pointwise(a, b.t(), None, "none", [], "")
    return product


_library.impl("product", _product, "CPU")
_library.impl("product", lambda a, b: a.new_empty(a.shape[0], b.shape[1]), "Meta")


def with_onednn(graph: fx.GraphModule) -> fx.GraphModule:
    """The program with oneDNN's products in place of MKL's, where that is faster; changes `graph`."""
    if not _mkl_is_slow():
        return graph
    for node in list(graph.graph.nodes):
        if node.target not in (aten.mm.default, aten.addmm.default) or node.kwargs:
            continue
        *added, a, b = node.args
        left, right = a.meta["val"], b.meta["val"]
        if (left.dtype, left.device.type) != (torch.float32, "cpu") or left.numel() * right.shape[
            1
        ] < LEAST:
            continue
        with graph.graph.inserting_before(node):
            new = graph.graph.call_function(torch.ops.fl_lightning.product.default, (a, b))
            for term in added:
                new = graph.graph.call_function(aten.add.Tensor, (new, term))
        node.replace_all_uses_with(new)
        graph.graph.erase_node(node)
    graph.recompile()
    return graph


@cache
def _mkl_is_slow() -> bool:
    """Whether products are MKL's, on another maker's processor, with oneDNN at hand."""
    try:
        other = "GenuineIntel" not in Path("/proc/cpuinfo").read_text()
    except OSError:
        other = False
    return (
        other
        and torch.backends.mkl.is_available()
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    )
