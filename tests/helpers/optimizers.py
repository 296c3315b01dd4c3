"""A small network, its closure and its batches: what the tests of the optimizer wrappers share."""

import io
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

from fl_lightning.optim import ASAM, LESAM, SAM

EXACT = {"rtol": 0.0, "atol": 1e-12}
BASES = {
    "sgd": partial(SGD, lr=0.1),
    "momentum": partial(SGD, lr=0.1, momentum=0.9, nesterov=True),
    "weight decay": partial(SGD, lr=0.1, momentum=0.5, weight_decay=0.1),
    "adamw": partial(AdamW, lr=0.01, weight_decay=0.1),
}
WRAPPERS = {
    "sam": partial(SAM, rho=0.1),
    "asam": partial(ASAM, rho=0.5),
    "lesam": lambda base: LESAM(
        base, (torch.randn_like(p) for p in base.param_groups[0]["params"]), rho=0.1
    ),
}
bases = pytest.mark.parametrize("base", BASES.values(), ids=BASES)
wrappers = pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)

Gradients = list[Tensor]


def network(dtype: torch.dtype = torch.float64, seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).to(dtype)


def batches(count: int, dtype: torch.dtype = torch.float64) -> list[tuple[Tensor, Tensor]]:
    g = torch.Generator().manual_seed(1)
    return [
        (torch.randn(16, 4, generator=g, dtype=dtype), torch.randint(3, (16,), generator=g))
        for _ in range(count)
    ]


def closure_of(
    model: nn.Module, optimizer: Optimizer, x: Tensor, y: Tensor
) -> Callable[[], Tensor]:
    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss

    return closure


def train(model: nn.Module, optimizer: Optimizer, data: list[tuple[Tensor, Tensor]]) -> nn.Module:
    for x, y in data:
        optimizer.step(closure_of(model, optimizer, x, y))
    return model


def weights(model: nn.Module) -> list[Tensor]:
    return [p.detach().clone() for p in model.parameters()]


def same_bits(tensors: Iterable[Tensor], others: Iterable[Tensor]) -> bool:
    return all(torch.equal(t, o) for t, o in zip(tensors, others, strict=True))


def gradients(model: nn.Module, x: Tensor, y: Tensor) -> Gradients:
    return list(torch.autograd.grad(F.cross_entropy(model(x), y), list(model.parameters())))


def assert_equal(model: nn.Module, other: nn.Module, **tolerance: float) -> None:
    tolerance = tolerance or {"rtol": 0.0, "atol": 0.0}
    torch.testing.assert_close(list(model.parameters()), list(other.parameters()), **tolerance)


def restored(state: dict[str, Any]) -> dict[str, Any]:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)
