"""LightningModules that no federation can train are refused in one sentence."""

import random
from collections.abc import Callable
from functools import partial, partialmethod
from typing import Any

import numpy as np
import pytest
import torch
from lightning import LightningModule
from lightning_modules import (
    Lit,
    data,
    decaying,
    module,
    refused,
    step_with,
    trainer,
    with_rates,
)
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import LBFGS, SGD, Adafactor, Optimizer
from torch.optim.lr_scheduler import LambdaLR, OneCycleLR, ReduceLROnPlateau, StepLR
from torchmetrics.classification import MulticlassAccuracy

import fl_lightning as fl
from fl_lightning.training.lightning_hooks import REFUSED


@pytest.mark.parametrize("hook", sorted(REFUSED))
def test_hooks_of_a_trainers_loop(hook: str) -> None:
    mine = module(**{hook: lambda self, *_, **__: -1})  # ends an epoch, if before a batch
    refused(lambda: trainer().fit(mine, data()), "Mine", hook, "setup", "callback")


class Fixed(Optimizer):
    """Has a rate of its own."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.1})


OF_NOBODY = nn.Parameter(torch.zeros(2))
ONE_CYCLE = partial(OneCycleLR, max_lr=0.1, cycle_momentum=False)


def two_schedules(self: Any) -> Any:
    optimizer = decaying(SGD, self.parameters(), lr=0.1)
    return [optimizer], LambdaLR(optimizer, [lambda _: 1.0, lambda round: 0.9**round])


def scheduled(
    kind: Any, optimizer: Any = SGD, lightning: Any = (), **options: Any
) -> Callable[[Any], Any]:
    """`configure_optimizers` with a scheduler, and Lightning's options of it."""

    def configure_optimizers(self: Any) -> Any:
        made = optimizer(self.parameters(), lr=0.1)
        return [made], [{"scheduler": kind(made, **options), **dict(lightning)}]

    return configure_optimizers


def vector_loss(self: Any, batch: Any) -> Tensor:
    return F.cross_entropy(self(batch["x"]), batch["label"], reduction="none")


def averages(self: Any, batch: Any) -> None:
    """The momentum encoder of contrastive learning."""
    with torch.no_grad():
        self.norm.weight.mul_(0.9)


def averages_data(self: Any, batch: Any) -> None:
    self.norm.weight.data = 0.9 * self.norm.weight.data


def anneals(self: Any, batch: Any, index: int) -> Tensor:
    """Counts the steps by itself."""
    self.count = vars(self).get("count", 0) + 1
    return Lit.training_step(self, batch, index) / self.count


def begins_late(self: Any, batch: Any, index: int) -> Tensor:
    """Anneals after steps that no trial makes."""
    self.count = vars(self).get("count", 0) + 1
    return Lit.training_step(self, batch, index) * (1 if self.count < 100 else 0.1)


def remembers(self: Any, batch: Any, index: int) -> Tensor:
    """Centers outputs by the mean of the step before."""
    out = self(batch["x"])
    loss = F.cross_entropy(out - vars(self).get("center", 0), batch["label"])
    self.center = out.detach().mean(0)
    return loss


class Sparse(Lit):
    """Has rows of which a step takes few."""

    def __init__(self) -> None:
        super().__init__(norm=False)
        self.table = nn.Embedding(3, 8, sparse=True)

    def training_step(self, batch: dict[str, Tensor], index: int) -> Tensor:
        hidden = torch.tanh(self.inner(batch["x"])) + self.table(batch["label"])
        return F.cross_entropy(self.outer(hidden), batch["label"])


class Unshaped(Lit):
    """Has a layer without a shape."""

    def configure_model(self) -> None:
        self.inner = nn.LazyLinear(8)


def with_list(self: Any) -> None:
    Lit.__init__(self)
    self.kept = list[int]()


def adds_noise(self: Any, batch: Any, index: int) -> Tensor:
    """Draws from a generator of its own."""
    return Lit.training_step(self, batch, index) * torch.rand((), generator=self.noise)


OPTIMIZERS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "two optimizers": (lambda self: [SGD(self.parameters(), lr=0.1)] * 2, "one optimizer"),
    "two schedules": (two_schedules, "by other factors"),
    "two schedulers": (lambda self: ([SGD(self.parameters(), lr=0.1)], [1, 2]), "schedulers"),
    "some parameters": (lambda self: SGD(self.outer.parameters(), lr=0.1), "inner.weight"),
    "parameters of nobody": (
        lambda self: SGD([*self.parameters(), OF_NOBODY], lr=0.1),
        "no part of Mine",
    ),
    "no optimizer": (lambda self: None, "lr="),
    "a closure": (lambda self: LBFGS(self.parameters()), "closure"),
    "a plateau of nothing": (scheduled(ReduceLROnPlateau), "Plateau of Mine has no monitor"),
    "a plateau of no score": (
        scheduled(ReduceLROnPlateau, lightning={"monitor": "val_loss"}),
        "'val_loss', but a round records train/loss, loss",
    ),
    "a plateau of two rates": (
        scheduled(ReduceLROnPlateau, partial(with_rates, SGD), {"monitor": "loss"}, min_lr=0.01),
        "min_lr",
    ),
    "a plateau in a visit": (
        scheduled(ReduceLROnPlateau, lightning={"interval": "step", "monitor": "loss"}),
        "interval",
    ),
    "a short cycle": (scheduled(ONE_CYCLE, total_steps=1), "steps ahead"),
    "a cycle of momentum": (
        scheduled(OneCycleLR, max_lr=0.1, total_steps=9),
        "cycle_momentum=False",
    ),
    "rules for layers": (lambda self: Adafactor(self.parameters(), lr=0.1), "Adafactor of Mine"),
    "a wrapper": (lambda self: fl.optim.SAM(SGD(self.parameters(), lr=0.1)), "perturb"),
    "an optimizer without lr": (
        lambda self: Fixed(self.parameters()),
        "Fixed, which takes no argument lr",
    ),
    "a step's interval": (
        scheduled(StepLR, lightning={"interval": "step"}, step_size=1),
        "interval",
    ),
    "no frequency": (scheduled(StepLR, lightning={"frequency": 0}, step_size=1), "frequency-th"),
    "trainer of the optimizer": (
        lambda self: SGD(self.parameters(), self.trainer.world_size),
        "self.trainer.world_size",
    ),
}
STEPS: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "trainer": (lambda self, _: self.trainer.world_size, "self.trainer.world_size"),
    "rounds in a step": (lambda self, _: self.trainer.max_epochs, "it in configure_optimizers"),
    "the end": (lambda self, _: setattr(self.trainer, "should_stop", True), "should_stop"),
    "logger": (lambda self, _: self.logger, "log numbers by self.log"),
    "the base's log": (lambda self, _: super(Lit, self).log("mine", 1.0), "call self.log in"),
    "global_step": (lambda self, _: self.global_step, "global_step"),
    "optimizers": (lambda self, _: self.optimizers(), "local/lr"),
    "a moving average": (averages, "'norm.weight' in a step"),
    "a moving average of data": (averages_data, "'norm.weight' in a step"),
    "a logged sum": (
        lambda self, _: self.log("mine", 1.0, reduce_fx="sum"),
        "'mine' with reduce_fx='sum'",
    ),
    "an own reduction": (
        lambda self, _: self.log("mine", 1.0, reduce_fx=len),
        "mean, sum, min, max",
    ),
    "a metric of nobody": (
        lambda self, _: self.log("mine", MulticlassAccuracy(3)),
        "'mine', a metric that is no part",
    ),
    "a logged vector": (lambda self, b: self.log("mine", self(b["x"])[0]), "'mine' of shape (3,)"),
    "a number of the federation": (
        lambda self, _: self.log("local/lr", 1.0),
        "logs 'local/lr', which is the federation's",
    ),
    "a statistic over clients": (
        lambda self, _: self.log("loss_std", 1.0),
        "'loss' and 'loss_std'",
    ),
    "a logged text": (lambda self, _: self.log("mine", "good"), "logs 'mine' of 'good'"),
}
"""What a step does besides."""

OTHERS: dict[str, tuple[dict[str, Any], str]] = {
    "manual": ({"automatic_optimization": False}, "automatic_optimization"),
    "trainer of setup": (
        {"setup": lambda self, stage: self.trainer.estimated_stepping_batches},
        "self.trainer.estimated_stepping_batches",
    ),
    "a hook of Lightning 1": (
        {"validation_epoch_end": lambda self, outputs: None},
        "validation_epoch_end",
    ),
    "no step": ({"training_step": LightningModule.training_step}, "training_step"),
    "no loss": ({"training_step": lambda self, batch: None}, "training_step"),
    "no loss in a dictionary": ({"training_step": lambda self, batch: {"out": 1}}, "training_step"),
    "several losses": ({"training_step": vector_loss}, "(2,)"),
    "a key": ({"training_step": lambda self, batch: batch["z"]}, "'z'"),
    "a count of steps": ({"training_step": anneals}, "Mine has another result"),
    "a count that acts late": ({"training_step": begins_late}, "'count' in each step"),
    "a list": (
        {"training_step": step_with(lambda self, _: self.kept.append(1)), "__init__": with_list},
        "'kept' in each step",
    ),
    "a tensor of the step before": (
        {"training_step": remembers, "__init__": partialmethod(Lit.__init__, norm=False)},
        "Mine has another result",
    ),
    "a generator of its own": (
        {"training_step": adds_noise, "noise": torch.Generator()},
        "torch's global generator",
    ),
}
MODULES = OTHERS
MODULES |= {name: ({"configure_optimizers": of}, word) for name, (of, word) in OPTIMIZERS.items()}
MODULES |= {name: ({"training_step": step_with(of)}, word) for name, (of, word) in STEPS.items()}


@pytest.mark.parametrize("name", MODULES)
def test_modules_that_no_federation_can_train(name: str) -> None:
    members, word = MODULES[name]
    refused(lambda: trainer().fit(module(**members), data()), word)


def test_parameters_without_a_shape_frozen_ones_and_sparse_gradients() -> None:
    refused(lambda: trainer().fit(Lit().requires_grad_(False), data()), "no trainable parameter")
    refused(lambda: trainer().fit(Unshaped(), data()), "inner.weight has no shape")
    refused(lambda: trainer().fit(Sparse(), data()), "table.weight in Sparse", "sparse=True")


@pytest.mark.parametrize("executor", ["sequential", "stacked"])
def test_numbers_that_some_steps_alone_log(executor: str) -> None:
    """Their places in a client's means took the numbers of other names."""
    of_late = step_with(lambda self, _: self.log("late", 1.0) if self.current_epoch else None)
    of_few = step_with(lambda self, b: self.log("few", 1.0) if len(b["x"]) < 5 else None)
    for step, name in ((of_late, "late"), (of_few, "few")):
        with pytest.raises(fl.UserError, match=f"logs '{name}' in some steps alone"):
            trainer(executor=executor).fit(module(training_step=step), data())


def test_a_step_may_draw_from_global_generators() -> None:
    """The trial of a step leaves them where they were."""

    def noisy(self: Any, batch: Any, index: int) -> Tensor:
        draws = torch.rand(()), random.random(), np.random.rand()  # noqa: NPY002
        return Lit.training_step(self, batch, index) * sum(draws)

    mine, given = module(training_step=noisy), data()
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[2]  # noqa: NPY002
    trainer().fit(mine, given)
    assert torch.get_rng_state().equal(before[0])
    assert (random.getstate(), np.random.get_state()[2]) == before[1:]  # noqa: NPY002


def test_a_step_that_loses_the_dimension_of_a_batch_of_one() -> None:
    def squeezed(self: Any, batch: Any) -> Tensor:
        out = self(batch["x"])[:, :1].squeeze()
        return F.binary_cross_entropy_with_logits(out, (batch["label"] > 0).to(out.dtype))

    mine = module(training_step=squeezed)
    mine.norm = nn.Identity()  # BatchNorm leaves such a batch out
    trainer(batch_size=5).fit(mine, data())
    for size in (4, 6):  # of 13, 7, 12 and 9 rows
        with pytest.raises(fl.UserError, match=r"batch of one sample.*squeeze\(-1\).*batch_size"):
            trainer(batch_size=size).fit(mine, data())


def test_a_step_that_unfreezes_a_parameter_later() -> None:
    """Clients would never train it."""
    thaw = step_with(lambda self, _: self.inner.requires_grad_(self.current_epoch > 0))
    mine = module(training_step=thaw)
    mine.inner.requires_grad_(False)
    with pytest.raises(fl.UserError, match="Mine makes a frozen parameter trainable"):
        trainer().fit(mine, data())
    assert not mine.inner.weight.requires_grad
