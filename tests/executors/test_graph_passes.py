"""Graph passes do not change a program's values."""

from collections.abc import Callable
from functools import partial
from math import inf, nan
from typing import Any

import pytest
import torch
from executors import needs_onednn
from problems import vec
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.functional import max_pool2d
from torch.optim import SGD, Adam, Optimizer

from fl_lightning.executors import graph_passes
from fl_lightning.executors.graph_passes import (
    with_late_concatenation,
    with_onednn,
    with_vector_pooling,
)
from fl_lightning.executors.local_step import weight_decay
from fl_lightning.executors.program import Program

aten = torch.ops.aten


def traced(function: Callable[..., Any], *arguments: Tensor) -> fx.GraphModule:
    def flat(*tensors: Tensor) -> Any:
        return function(*tensors)

    return make_fx(flat, tracing_mode="fake", _allow_non_fake_inputs=True)(*arguments)


def joined(a: Tensor, b: Tensor) -> Tensor:
    return torch.cat([a, b], -1)


CONCATENATED = {
    "with a factor": lambda a, b, v: torch.add(joined(a, b), v, alpha=3),
    "less a multiple": lambda a, b, v: torch.sub(v, joined(a, b), alpha=3),
    "split as it was": lambda a, b, v: [p.sum() for p in (joined(a, b) * v).split([2, 2], -1)],
    "split elsewhere": lambda a, b, v: [part.sum() for part in joined(a, b).split([1, 3], -1)],
    "split along the rows": lambda a, b, v: [part.sum() for part in joined(a, b).split([2, 2], 0)],
    "along the rows": lambda a, b, v: torch.cat([a, b], 0) * 2 + v[0, 0],
    "broadcast": lambda a, b, v: joined(a, b) * v[:1] + v[:, :1],
    "enlarged": lambda a, b, v: joined(a, b) + torch.stack([v, 2 * v]),
}


@pytest.mark.parametrize("function", CONCATENATED.values(), ids=CONCATENATED)
def test_a_late_concatenation_has_the_same_values(function: Any) -> None:
    a, b, v = torch.randn(4, 2), torch.randn(4, 2), torch.randn(4, 4)
    rewritten = with_late_concatenation(traced(function, a, b, v))
    torch.testing.assert_close(rewritten(a, b, v), function(a, b, v), rtol=0, atol=1e-6)


PRODUCTS = {
    "plain": lambda c, a, b: a @ b,
    "added": lambda c, a, b: torch.addmm(c, a, b),
    "of products": lambda c, a, b: torch.addmm(c, a, b) @ (b.t() @ a.t()),
    "scaled": lambda c, a, b: torch.addmm(c, a, b, alpha=3),
    "added in part": lambda c, a, b: torch.addmm(c, a, b, beta=0.5),
}


@needs_onednn
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("function", PRODUCTS.values(), ids=PRODUCTS)
def test_onednns_products_have_the_same_values(
    function: Any, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graph_passes, "_mkl_is_slow", lambda: True)
    monkeypatch.setattr(graph_passes, "LEAST", 1)
    c, a, b = (torch.randn(*shape, dtype=dtype) for shape in ((4, 3), (4, 5), (5, 3)))
    rewritten = with_onednn(traced(function, c, a, b))
    torch.testing.assert_close(rewritten(c, a, b), function(c, a, b), rtol=0, atol=1e-5)
    product = torch.ops.fl_lightning.product.default
    replaced = any(node.target is product for node in rewritten.graph.nodes)
    assert replaced == (dtype == torch.float32 and function in [*PRODUCTS.values()][:3])


def test_a_program_is_for_shapes_strides_and_dtypes(traces: list[Any]) -> None:
    program, x = Program(lambda x: (x.reshape(-1) * 2,)), torch.randn(3, 3)
    arguments = {x: 1, x + 1: 1, x.t(): 2, x.double(): 3, x[:2]: 4, x.t() + 1: 4}
    for argument, made in arguments.items():
        torch.testing.assert_close(program(argument), (argument.reshape(-1) * 2,), rtol=0, atol=0)
        assert len(traces) == made


class Scaled(SGD):
    """A subclass, which may step differently."""


@pytest.mark.parametrize(
    ("make", "decay"),
    [
        (partial(SGD, lr=0.1), 0.0),
        (partial(SGD, lr=0.1, weight_decay=0.01), 0.01),
        (partial(SGD, lr=0.1, momentum=0.9), None),
        (partial(SGD, lr=0.1, maximize=True), None),
        (partial(Scaled, lr=0.1), None),
        (partial(Adam, lr=0.1), None),
        (lambda rows: SGD([{"params": rows[:1], "lr": 1.0}, {"params": rows[1:]}], lr=0.1), None),
    ],
    ids=["sgd", "decay", "momentum", "ascent", "subclass", "adam", "groups"],
)
def test_only_plain_sgd_is_part_of_the_program(
    make: Callable[..., Optimizer], decay: float | None
) -> None:
    assert weight_decay(make([vec(1.0), vec(2.0)])) == decay


# ---------------------------------------------------------------------------------- max-pooling


def pooled(x: Tensor, weights: Tensor, **window: Any) -> tuple[Tensor, Tensor]:
    """Max-pooling of `x`, and the gradient of its sum with these weights."""
    y, gradient, *_ = torch.func.vjp(lambda x: max_pool2d(x, **{"kernel_size": 2, **window}), x)
    return y, gradient(weights)[0]


def pools(graph: fx.GraphModule) -> bool:
    return any(node.target is aten.max_pool2d_with_indices.default for node in graph.graph.nodes)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("stride", [None, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_vector_pooling_has_the_same_bits(
    dtype: torch.dtype, layout: torch.memory_format, stride: int | None
) -> None:
    """Few different values, so that the first of equal ones counts; infinities and NaN."""
    draw = torch.Generator().manual_seed(0)
    values = torch.tensor([-1.0, 0.0, 1.0, 2.0, inf, -inf, nan], dtype=dtype)
    x = values[torch.randint(7, (3, 5, 6, 8), generator=draw)].contiguous(memory_format=layout)
    weights = torch.randn(3, 5, 3, 4, generator=draw).to(dtype)
    function = partial(pooled, stride=stride)
    rewritten = with_vector_pooling(traced(function, x, weights), [x, weights])
    assert not pools(rewritten)
    for actual, expected in zip(rewritten(x, weights), function(x, weights), strict=True):
        assert actual.dtype == expected.dtype
        assert torch.equal(actual.nan_to_num(7.0), expected.nan_to_num(7.0))


OTHER_WINDOWS = [{"kernel_size": 3}, {"stride": 1}, {"padding": 1}, {"ceil_mode": True}]


@pytest.mark.parametrize(
    ("size", "window"),
    [*(((6, 6), window) for window in OTHER_WINDOWS), ((6, 7), {}), ((7, 6), {}), ((7, 7), {})],
    ids=str,
)
def test_other_pooling_stays(size: tuple[int, int], window: dict[str, Any]) -> None:
    x = torch.randn(2, 3, *size)
    weights = torch.randn_like(max_pool2d(x, **{"kernel_size": 2, **window}))
    graph = traced(partial(pooled, **window), x, weights)
    assert pools(graph)
    assert with_vector_pooling(graph, [x, weights]) is graph


def test_pooling_whose_indices_are_read_stays() -> None:
    x = torch.randn(2, 3, 4, 4)
    graph = traced(lambda x: max_pool2d(x, 2, return_indices=True), x)
    assert pools(graph)
    assert with_vector_pooling(graph, [x]) is graph
