from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, grad_and_value, vmap

from fl_lightning.core import device
from fl_lightning.models import group_norm
from fl_lightning.models.group_norm import GroupNorm

OURS, TORCHS = GroupNorm(2, 6), nn.GroupNorm(2, 6)
CLIENTS = 3


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "on_gpu", lambda x: True)


def given(dtype: torch.dtype = torch.float64) -> tuple[Tensor, dict[str, Tensor]]:
    g = torch.Generator().manual_seed(0)
    x = torch.randn(CLIENTS, 4, 6, 5, 3, generator=g, dtype=torch.float64) + 0.5
    weight, bias = torch.randn(2, CLIENTS, 6, generator=g, dtype=torch.float64)
    return x.to(dtype), {"weight": weight, "bias": bias}


def loss(norm: nn.Module) -> Callable[[Tensor, dict[str, Tensor]], Tensor]:
    def value(x: Tensor, weights: dict[str, Tensor]) -> Tensor:
        out = functional_call(norm, weights, functional_call(norm, weights, x).tanh())
        return out.pow(3).mean()

    return value


def first(norm: nn.Module) -> Callable[..., Any]:
    return grad_and_value(loss(norm), (0, 1))


def second(norm: nn.Module) -> Callable[..., Any]:
    def curved(x: Tensor, weights: dict[str, Tensor]) -> Tensor:
        of_x, of_weights = grad(loss(norm), (0, 1))(x, weights)
        return of_x.square().sum() + sum(g.square().sum() for g in of_weights.values())

    return grad_and_value(curved, (0, 1))


@pytest.mark.usefixtures("on_gpu")
@pytest.mark.parametrize("dims", [(0, 0), (0, None), (None, 0)], ids=str)
@pytest.mark.parametrize("derivative", [first, second])
def test_values_and_derivatives_of_several_clients_are_torchs(derivative: Any, dims: Any) -> None:
    x, weights = given()
    x = x if dims[0] == 0 else x[0]
    weights = weights if dims[1] == 0 else {name: w[0] for name, w in weights.items()}
    ours, torchs = (vmap(derivative(norm), in_dims=dims)(x, weights) for norm in (OURS, TORCHS))
    torch.testing.assert_close(ours, torchs, rtol=1e-10, atol=1e-12)


@pytest.mark.usefixtures("on_gpu")
@pytest.mark.parametrize("derivative", [first, second])
def test_so_are_those_of_one_client(derivative: Any) -> None:
    x, weights = given()
    one = x[0], {name: w[0] for name, w in weights.items()}
    torch.testing.assert_close(derivative(OURS)(*one), derivative(TORCHS)(*one))


@pytest.mark.usefixtures("on_gpu")
def test_autograd_gets_the_gradients_of_bf16_in_bf16() -> None:
    x, weights = given(torch.bfloat16)
    results = []
    for norm, dtype in ((GroupNorm(2, 6), x.dtype), (nn.GroupNorm(2, 6).double(), torch.float64)):
        inputs = x[0].to(dtype).requires_grad_()
        norm.load_state_dict({name: w[0] for name, w in weights.items()})
        out = norm(inputs)
        results.append([out, *torch.autograd.grad(out.pow(3).sum(), [inputs, *norm.parameters()])])
    assert [t.dtype for t in results[0]] == [torch.bfloat16] * 2 + [torch.float32] * 2
    for ours, exact in zip(*results, strict=True):
        assert (ours - exact).norm() < 0.01 * exact.norm()


@pytest.mark.parametrize("affine", [True, False])
def test_a_cpu_has_torchs_bits(affine: bool) -> None:
    ours, torchs = GroupNorm(2, 6, affine=affine), nn.GroupNorm(2, 6, affine=affine)
    x = given(torch.float32)[0][0]
    assert ours(x).equal(torchs(x))
    assert ours.state_dict().keys() == torchs.state_dict().keys()


@pytest.mark.usefixtures("on_gpu")
def test_zeros_made_in_evaluation_serve_in_training() -> None:
    group_norm._kept_zero.cache_clear()
    x = given(torch.bfloat16)[0][0]
    with torch.inference_mode():
        GroupNorm(2, 6)(x)
    GroupNorm(2, 6)(x).sum().backward()
