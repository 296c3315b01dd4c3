"""A module trains the same in every executor."""

from functools import cache, partial
from typing import Any

import pytest
import torch
from lightning_modules import ByRound, Lit, data, distance, rows, state, trainer
from torch import Tensor
from torch.optim import SGD

EXECUTORS = {
    "stacked": {"executor": "stacked", "parallel_clients": 3},
    "compiled": {"compile": True},
    "stacked and compiled": {"executor": "stacked", "parallel_clients": 2, "compile": True},
}


def fitted(**executor: Any) -> tuple[dict[str, Tensor], Any]:
    """Weights and history after three rounds of FedTOGA."""
    module = ByRound(partial(SGD, lr=0.1, momentum=0.9), dropout=0.3, step=2).double()
    run = trainer("fedtoga", rounds=3, **executor)
    run.fit(module, data(torch.float64, test=rows(20, torch.float64)))
    return state(module), run.history.drop(columns=[n for n in run.history if "time/" in n])


sequential = cache(fitted)


@pytest.mark.parametrize("name", EXECUTORS)
def test_executors_agree(name: str, traces: list[Any]) -> None:
    """With ragged clients, batches that are dictionaries, dropout, momentum and a scheduler."""
    expected, history = sequential()
    found, other = fitted(**EXECUTORS[name])
    assert distance(found, expected) < 1e-10
    assert (other - history).abs().max().max() < 1e-10
    assert bool(traces) == ("compiled" in name)
    assert history["local/lr"].tolist() == pytest.approx([0.1, 0.1, 0.05])
    assert {"loss", "loss_std", "loss_worst10", "test_loss"} <= {*history}


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # by dynamo, in evaluation
@pytest.mark.parametrize("executor", ["sequential", "stacked"])
def test_a_part_in_torch_compile_draws_the_same_dropout(executor: str) -> None:
    modules = [Lit(dropout=0.5).double() for _ in range(2)]
    modules[1].drop.compile(backend="eager")
    for module in modules:
        trainer(executor=executor).fit(module, data(torch.float64))
    assert distance(*modules) == 0
