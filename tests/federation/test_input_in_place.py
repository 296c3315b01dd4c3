"""Models that change the batch that they are given; models and optimizers that replace tensors."""

import pytest
import torch
from problems import classification, federation
from torch import Tensor, nn

from fl_lightning import Algorithm, ModelError
from fl_lightning.terms import SAM


class Shifts(nn.Module):
    """Subtracts in place, before its layer."""

    def __init__(self) -> None:
        super().__init__()
        self.outer = nn.Linear(6, 3).double()

    def forward(self, x: Tensor) -> Tensor:
        return self.outer(x.sub_(1.0))


CHANGING = {
    "Sequential": nn.Sequential(nn.ReLU(inplace=True), nn.Linear(6, 3)).double(),
    "Shifts": Shifts(),
}


@pytest.mark.parametrize("name", CHANGING)
def test_a_model_that_changes_its_input_is_refused(name: str) -> None:
    run = federation(Algorithm(SAM(0.1)), module=CHANGING[name], clients=classification())
    with pytest.raises(ModelError, match=f"{name} changes its input in place"):
        run.prepare()


def test_changes_of_what_the_model_made_itself_are_its_own_matter() -> None:
    layers = nn.Linear(6, 5), nn.ReLU(inplace=True), nn.Linear(5, 3)
    federation(Algorithm(SAM(0.1)), module=nn.Sequential(*layers).double()).prepare()


class MovingMean(nn.Module):
    """Replaces its buffer in training."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3).double()
        self.register_buffer("mean", torch.zeros(6).double())

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
        return self.layer(x - self.mean)


def test_a_model_that_replaces_a_buffer_is_refused() -> None:
    run = federation(Algorithm(), module=MovingMean(), clients=classification())
    with pytest.raises(ModelError, match="MovingMean replaces its buffer 'mean'"):
        run.prepare()


class Replaces(torch.optim.SGD):
    """Gives its parameter another tensor."""

    @torch.no_grad()
    def step(self, closure: object = None) -> None:
        for p in self.param_groups[0]["params"]:
            p.data = p.data - 0.1 * p.grad


def test_an_optimizer_that_replaces_its_parameter_is_refused() -> None:
    with pytest.raises(ValueError, match="Replaces replaces the data"):
        federation(Algorithm(local=lambda w: Replaces(w, 0.1)))
