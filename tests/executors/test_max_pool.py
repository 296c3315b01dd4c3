"""Pooling that the compiler can vectorise is pooling."""

from functools import partial
from math import inf, nan
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.functional import max_pool2d

from fl_lightning.executors.compile.max_pool import with_vector_pooling

aten = torch.ops.aten


def pooled(x: Tensor, weights: Tensor, **window: Any) -> tuple[Tensor, Tensor]:
    """Max-pooling of `x`, and the gradient of its sum with these weights."""
    y, gradient, *_ = torch.func.vjp(lambda x: max_pool2d(x, **{"kernel_size": 2, **window}), x)
    return y, gradient(weights)[0]


def traced(function: Any, *arguments: Tensor) -> tuple[fx.GraphModule, fx.GraphModule]:
    """The trace of a function, and the same with its pooling rewritten."""
    graph = make_fx(
        lambda *tensors: function(*tensors), tracing_mode="fake", _allow_non_fake_inputs=True
    )(*arguments)
    return graph, with_vector_pooling(graph, list(arguments))


def pools(graph: fx.GraphModule) -> bool:
    return any(node.target is aten.max_pool2d_with_indices.default for node in graph.graph.nodes)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("stride", [None, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_values_and_gradients_are_the_same_bits(
    dtype: torch.dtype, layout: torch.memory_format, stride: int | None
) -> None:
    """Among few values, so that of equal ones the first has to be found, and with all that is not finite."""
    draw = torch.Generator().manual_seed(0)
    values = torch.tensor([-1.0, 0.0, 1.0, 2.0, inf, -inf, nan], dtype=dtype)
    x = values[torch.randint(7, (3, 5, 6, 8), generator=draw)].contiguous(memory_format=layout)
    weights = torch.randn(3, 5, 3, 4, generator=draw).to(dtype)
    here = partial(pooled, stride=stride)
    _, rewritten = traced(here, x, weights)
    assert not pools(rewritten)
    for ours, theirs in zip(rewritten(x, weights), here(x, weights), strict=True):
        assert ours.dtype == theirs.dtype
        assert torch.equal(ours.nan_to_num(7.0), theirs.nan_to_num(7.0))


@pytest.mark.parametrize(
    "window", [{"kernel_size": 3}, {"stride": 1}, {"padding": 1}, {"ceil_mode": True}]
)
def test_other_windows_are_left_alone(window: dict[str, Any]) -> None:
    x = torch.randn(2, 3, 7, 7)
    weights = torch.randn_like(max_pool2d(x, **{"kernel_size": 2, **window}))
    graph, rewritten = traced(lambda x, weights: pooled(x, weights, **window), x, weights)
    assert pools(graph)
    assert rewritten is graph


@pytest.mark.parametrize("size", [(6, 7), (7, 6), (7, 7)])
def test_what_cannot_be_halved_is_left_alone(size: tuple[int, int]) -> None:
    x, weights = torch.randn(2, 3, *size), torch.randn(2, 3, 3, 3)
    graph, rewritten = traced(pooled, x, weights)
    assert rewritten is graph


def test_indices_that_somebody_looks_at_are_left_alone() -> None:
    graph, rewritten = traced(
        lambda x: max_pool2d(x, 2, return_indices=True), torch.randn(2, 3, 4, 4)
    )
    assert pools(graph)
    assert rewritten is graph
