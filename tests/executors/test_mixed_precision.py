"""All weights cast at once give autocast's bits."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from executors import EAGER, on_eager_executors
from problems import (
    EVERY_ALGORITHM,
    classification,
    convolutional,
    cpu,
    everything,
    federation,
    hard,
    round_after_round,
)
from torch import Tensor, nn

from fl_lightning import Federation
from fl_lightning.core.vector import Layout
from fl_lightning.executors import executor as executors


class Several(nn.Module):
    """Uses weights otherwise too, and some not at all."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.inner, self.outer = nn.Linear(6, 6), nn.Linear(6, 3)
        self.scale, self.unused = nn.Parameter(torch.ones(())), nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor
        with torch.autocast("cpu", enabled=False):
            x = self.scale * x + self.inner.weight[0]
            out = self.outer(x)
        return out + self.outer(self.inner(x).tanh())


def images() -> dict[str, Any]:
    """Of two clients, whose last batches are short."""
    clients = classification(dtype=torch.float32, shape=(2, 4, 6))
    cohort = {"sampler": lambda *_: [1, 4]}
    return {"module": convolutional(2, torch.float32), "clients": clients, **cohort}


def assert_autocasts_bits(
    monkeypatch: pytest.MonkeyPatch, make: Callable[[], Federation]
) -> dict[str, Tensor]:
    """Train with casts of all weights at once, and with autocast alone."""
    at_once = make()
    assert at_once.local_training.executor.cast_dtype == torch.bfloat16
    monkeypatch.setattr(executors, "cast_dtype", lambda *_: None)
    one_by_one = make()
    results = [everything(round_after_round(run, 2)) for run in (at_once, one_by_one)]
    assert not {name for name, t in results[0].items() if not t.equal(results[1][name])}
    return results[0]


@on_eager_executors
@pytest.mark.parametrize("name", ["fedtoga", "fedsol", "fedrcl", "perfedavg", "qffl"])
def test_algorithms_have_autocasts_bits(
    name: str, executor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several gradients, heads by themselves, activations, parts of batches, losses alone."""
    algorithm = hard(EVERY_ALGORITHM[name])
    options = {"fabric": cpu("bf16-mixed"), "executor": executor}
    assert_autocasts_bits(monkeypatch, lambda: federation(algorithm, **images(), **options))


@on_eager_executors
def test_weights_that_are_used_otherwise_too_are_float32_there(
    executor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients = classification(dtype=torch.float32)
    options = {"fabric": cpu("bf16-mixed"), "executor": executor, "clients": clients}
    algorithm = EVERY_ALGORITHM["fedavg"]
    module = Several()
    before = Layout(module).named(Layout(module).read(module))
    results = assert_autocasts_bits(
        monkeypatch, lambda: federation(algorithm, module=Several(), **options)
    )
    after = Layout(module).named(results["model"])
    still = {name for name, w in before.items() if w.equal(after[name])}
    assert still == {"unused.weight", "unused.bias"}


@pytest.mark.parametrize("executor", EAGER.values(), ids=EAGER)
def test_float32_has_no_casts(executor: Any) -> None:
    run = federation(EVERY_ALGORITHM["fedavg"], executor=executor, **images())
    assert run.local_training.executor.cast_dtype is None
