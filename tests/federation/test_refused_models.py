"""Models with hooks, models that change a batch or a buffer, and optimizers that are refused."""

from functools import partial

import pytest
import torch
from problems import STACKED, classification, federation, trained
from torch import Tensor, nn
from torch.optim import SGD

from fl_lightning import Algorithm, ModelError, SequentialExecutor
from fl_lightning.terms import SAM


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)).double()


def tripled(*given):
    """Three times the output of a forward hook, or the gradient of a hook on a parameter."""
    return 3.0 * given[-1]


ON_PARAMETERS = {
    "gradient": lambda p: p.register_hook(tripled),
    "after accumulation": lambda p: p.register_post_accumulate_grad_hook(lambda _: None),
}


@pytest.mark.parametrize("register", ON_PARAMETERS.values(), ids=ON_PARAMETERS)
def test_a_hook_on_a_parameter_is_refused_by_name_until_it_is_removed(register):
    module = model()
    handle = register(module[2].weight)
    run = federation(Algorithm(SAM(0.1)), module=module, clients=classification())
    with pytest.raises(ModelError, match=r"parameter '2\.weight' of Sequential has a hook"):
        run.prepare()
    handle.remove()
    run.prepare()


def test_forward_hooks_of_modules_act_in_every_executor():
    modules = [model() for _ in range(3)]
    for module in modules[1:]:
        module[2].register_forward_hook(tripled)
    plain, one, stacked = (
        trained(Algorithm(SAM(0.1)), module=module, rounds=1, executor=executor)
        for module, executor in zip(modules, [SequentialExecutor] * 2 + [STACKED], strict=True)
    )
    torch.testing.assert_close(stacked.w, one.w)
    assert not torch.allclose(one.w, plain.w)


def test_parallel_clients_refuse_backward_hooks_of_modules():
    module = model()
    module[2].register_full_backward_hook(lambda *_: None)
    with pytest.raises(ModelError, match="train it with the sequential executor"):
        trained(Algorithm(SAM(0.1)), module=module, executor=STACKED)


@pytest.mark.parametrize("kind", ["local", "server"])
def test_an_optimizer_that_maximizes_is_refused(kind):
    algorithm = Algorithm(SAM(0.1), **{kind: partial(SGD, lr=0.1, maximize=True)})
    with pytest.raises(ValueError, match="maximize=True: negate the loss"):
        federation(algorithm, module=model())


class Shifts(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.sub_(1.0))


CHANGING = {
    "Sequential": nn.Sequential(nn.ReLU(inplace=True), nn.Linear(6, 3)).double(),
    "Shifts": Shifts(6, 3).double(),
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
    @torch.no_grad()
    def step(self, closure: object = None) -> None:
        for p in self.param_groups[0]["params"]:
            p.data = p.data - 0.1 * p.grad


def test_an_optimizer_that_replaces_its_parameter_is_refused() -> None:
    with pytest.raises(ValueError, match="Replaces replaces the data"):
        federation(Algorithm(local=lambda w: Replaces(w, 0.1)))
