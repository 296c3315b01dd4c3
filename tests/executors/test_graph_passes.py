"""Rewriting a traced program does not change its values."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from problems import vec
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx
from torch.optim import SGD, Adam, Optimizer

from fl_lightning.executors.compile import onednn as matrix_products
from fl_lightning.executors.compile.late_concat import with_late_concatenation
from fl_lightning.executors.compile.onednn import with_onednn
from fl_lightning.executors.compile.program import Program
from fl_lightning.executors.local_step import weight_decay


def traced(function: Callable[..., Any], *arguments: Tensor) -> fx.GraphModule:
    return make_fx(
        lambda *tensors: function(*tensors), tracing_mode="fake", _allow_non_fake_inputs=True
    )(*arguments)


def joined(a: Tensor, b: Tensor) -> Tensor:
    return torch.cat([a, b], -1)


CONCATENATED = {
    "with a factor": lambda a, b, v: torch.add(joined(a, b), v, alpha=3),
    "less a multiple": lambda a, b, v: torch.sub(v, joined(a, b), alpha=3),
    "split as it was": lambda a, b, v: [
        part.sum() for part in (joined(a, b) * v).split([2, 2], -1)
    ],
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
    "scaled": lambda c, a, b: torch.addmm(c, a, b, alpha=3),
    "added in part": lambda c, a, b: torch.addmm(c, a, b, beta=0.5),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("function", PRODUCTS.values(), ids=PRODUCTS)
def test_onednns_products_have_the_same_values(
    function: Any, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        pytest.skip("this PyTorch has no oneDNN")
    monkeypatch.setattr(matrix_products, "_mkl_is_slow", lambda: True)
    monkeypatch.setattr(matrix_products, "LEAST", 1)
    c, a, b = (torch.randn(*shape, dtype=dtype) for shape in ((4, 3), (4, 5), (5, 3)))
    rewritten = with_onednn(traced(function, c, a, b))
    torch.testing.assert_close(rewritten(c, a, b), function(c, a, b), rtol=0, atol=1e-5)
    ours = any(
        node.target is torch.ops.fl_lightning.product.default for node in rewritten.graph.nodes
    )
    assert ours == (dtype == torch.float32 and function in (PRODUCTS["plain"], PRODUCTS["added"]))


def test_a_program_is_for_shapes_strides_and_dtypes(traces: list[Any]) -> None:
    program, x = Program(lambda x: (x.reshape(-1) * 2,)), torch.randn(3, 3)
    for argument, made in [
        (x, 1),
        (x + 1, 1),
        (x.t(), 2),
        (x.double(), 3),
        (x[:2], 4),
        (x.t() + 1, 4),
    ]:
        torch.testing.assert_close(program(argument), (argument.reshape(-1) * 2,), rtol=0, atol=0)
        assert len(traces) == made


class Scaled(SGD):
    """A descent of its own."""


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
def test_only_a_plain_descent_is_part_of_the_program(
    make: Callable[..., Optimizer], decay: float | None
) -> None:
    assert weight_decay(make([vec(1.0), vec(2.0)])) == decay
