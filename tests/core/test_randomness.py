"""Random numbers of a user-defined term or model are seeded, whatever library draws them."""

# ruff: noqa: NPY002
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from executors import on_eager_executors
from problems import federation, hard
from refusals import experiment
from torch import Tensor, nn

from fl_lightning import Algorithm, Term

DRAWS = {"numpy": np.random.normal, "python": random.random}


class Noisy(Term):
    """Draws in every hook."""

    def __init__(self, draw: Any):
        self.draw = draw

    def start(self, w: Tensor, v: Any) -> Tensor:
        return w + 0.01 * self.draw()

    def gradient(self, oracle: Any, w: Tensor, v: Any) -> Tensor:
        return oracle(w) + 0.01 * self.draw()

    def report(self, w: Tensor, v: Any) -> Tensor:
        return w + self.draw()

    def update(self, delta: Tensor, mean: Tensor, v: Any) -> Tensor:
        return delta + 0.01 * mean + 0.01 * self.draw()


def state() -> tuple[Any, ...]:
    return random.getstate(), *map(str, np.random.get_state()), torch.get_rng_state().tolist()


@on_eager_executors
@pytest.mark.parametrize("library", DRAWS)
def test_draws_of_a_term_are_repeated_and_leave_the_generators_alone(
    library: str, executor: Any
) -> None:
    models = []
    for seed in (1, 2):
        run = federation(hard(Algorithm(Noisy(DRAWS[library]))), executor=executor)
        run.prepare()
        random.seed(seed)
        np.random.seed(seed)
        before = state()
        run.train_round()
        assert state() == before
        models.append(run.w)
    assert models[0].equal(models[1])


def test_draws_of_a_model_are_repeated(tmp_path: Path) -> None:
    def scaled(inputs: int, classes: int) -> nn.Module:
        network = nn.Sequential(nn.Flatten(), nn.Linear(inputs, classes))
        nn.init.constant_(network[1].weight, random.random() + np.random.normal())
        return network

    run = experiment(tmp_path / "run", model=scaled)
    train, _ = run.load()
    first, second = (run.model(train)[1].weight for _ in range(2))
    assert first.equal(second)
