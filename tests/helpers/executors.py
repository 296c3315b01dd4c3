"""Executors by name, and the comparison of runs that differ in nothing but the executor."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from problems import EXECUTORS, STACKED, classification, classifier, distances
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from fl_lightning import Algorithm, ClientData, SequentialExecutor, StackedExecutor, Term
from fl_lightning.core.oracle import Oracle
from fl_lightning.executors import GraphExecutor

TOLERANCE = 1e-10

TRACED = partial(StackedExecutor, width=1, compiled=5)
"""Compiles full batches of `problems.classification`; slow without the fixture `traces`."""

BRANCHES, ROWS = (partial(GraphExecutor, width=3, stacked=both) for both in (False, True))
"""Of CUDA graphs; on a CPU with the fixture `captures`."""

EAGER = {"sequential": SequentialExecutor, "stacked": STACKED}
COMPILED = {"traced": TRACED, "stacked, traced": partial(TRACED, width=2)}
ALL = EAGER | COMPILED

on_eager_executors = EXECUTORS
needs_onednn = pytest.mark.skipif(
    not hasattr(torch.ops.mkldnn, "_linear_pointwise"), reason="this PyTorch has no oneDNN"
)
on_all_executors = pytest.mark.parametrize("executor", ALL.values(), ids=ALL)


class Around(nn.Module):
    """Calls a classifier as a function says."""

    def __init__(self, call: Callable[[nn.Module, Tensor], Any], **options: Any) -> None:
        super().__init__()
        self.inner, self.call = classifier(**options), call

    def forward(self, x: Tensor) -> Any:
        return self.call(self.inner, x)


def noisy() -> nn.Module:
    """Draws from PyTorch's own generator."""
    return Around(lambda inner, x: inner(x * (1 + torch.randn_like(x))), dropout=0.0)


class Waiting(Term):
    """Reads a number of the device, as no CUDA graph can."""

    def gradient(self, oracle: Oracle, w: Tensor, v: Any) -> Tensor:
        g = oracle(w)
        return g if g.norm().item() > 0 else w


class Counting(Term):
    """Takes the round for an int, which it is neither in a compiled step nor in a CUDA graph."""

    def gradient(self, oracle: Oracle, w: Tensor, v: Any) -> Tensor:
        return oracle(w) / (v.round + 1).bit_length()


class Normalized(Optimizer):
    """Divides by the norm of all gradients that it has, and by the number of its steps."""

    def __init__(self, params: Any, lr: float = 0.1):
        super().__init__(params, {"lr": lr, "steps": 0})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            group["steps"] += 1
            norm = torch.stack([p.grad.norm() for p in group["params"]]).norm()
            for p in group["params"]:
                p.sub_(group["lr"] / group["steps"] * p.grad / norm)


def descending(algorithm: Algorithm) -> Algorithm:
    """With weight decay and no momentum: then SGD is part of the program, or of the graph."""
    return algorithm.with_outer_terms(local=partial(SGD, lr=0.1, weight_decay=0.01))


def assert_agree(run: Any, other: Any, tolerance: float = TOLERANCE) -> None:
    """Assert that model, buffers and all states are the same."""
    assert not {name: d for name, d in distances(run, other).items() if not d <= tolerance}


def ragged_clients(algorithm: str) -> ClientData:
    """Clients with short last batches; Per-FedAvg's halves hold two samples, as BatchNorm needs."""
    if algorithm == "perfedavg":
        return classification((16, 10, 12, 11, 4, 6), batch_size=6)
    return classification()
