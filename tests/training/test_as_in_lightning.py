"""One client is ordinary training: what a Trainer of Lightning makes of the same module."""

from collections.abc import Callable
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning
import torch
from lightning import LightningModule
from lightning_modules import (
    Lit,
    data,
    decaying,
    distance,
    lightning,
    module,
    rows,
    state,
    step_with,
    trainer,
    with_rates,
)
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD, AdamW
from torch.utils.data import DataLoader
from torchmetrics import MeanMetric

import fl_lightning as fl
from fl_lightning.training.lightning_module import StepModel

STEPS = 10
OPTIMIZERS = {
    "sgd": partial(SGD, lr=0.1),
    "momentum": partial(SGD, lr=0.1, momentum=0.9, weight_decay=0.01),
    "nesterov": partial(SGD, lr=0.1, momentum=0.9, nesterov=True),
    "adamw": partial(AdamW, lr=0.01, weight_decay=0.1),
    "decays": partial(decaying, partial(SGD, lr=0.1, momentum=0.9)),
    "decays of adamw": partial(decaying, partial(AdamW, lr=0.01)),
    "rates": partial(with_rates, partial(SGD, momentum=0.9, weight_decay=0.01)),
    "rates of adamw": partial(with_rates, AdamW),
}


@pytest.mark.parametrize("norm", [False, True], ids=["plain", "norm"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_one_client_is_trained_as_by_a_trainer(name: str, norm: bool) -> None:
    """In one visit, after which momentum would begin anew."""
    module = Lit(OPTIMIZERS[name], norm).double()
    batch, began = rows(40, torch.float64), state(module)
    expected = lightning(deepcopy(module), batch, STEPS)
    data = fl.FederatedData(batch, clients=[0] * 40)
    trainer(rounds=1, local_steps=STEPS, batch_size=40).fit(module, data)
    assert distance(module, expected) < 1e-12
    assert distance(module, began) > 0.01


@pytest.mark.filterwarnings("ignore:Found 2 module")
def test_a_part_in_evaluation_mode_stays_so_as_in_a_trainer(capsys: pytest.CaptureFixture) -> None:
    """Neither running statistics nor dropout of a frozen part move, in `fit` and scores after."""
    module = Lit(dropout=0.5).double()
    module.norm.requires_grad_(False).eval()
    module.drop.eval()
    batch, began = rows(40, torch.float64), state(module)
    expected = lightning(deepcopy(module), batch, STEPS)
    data = fl.FederatedData(batch, clients=[0] * 40, validation=batch)
    for executor in ("sequential", "stacked"):
        mine = deepcopy(module)
        fit = trainer(rounds=1, local_steps=STEPS, batch_size=40, executor=executor)
        fit.fit(mine, data)
        fit.validate(data=data)
        assert distance(mine, expected) < 1e-12
        assert mine.norm.running_mean.equal(began["norm.running_mean"])
        evaluating = [name for name, part in mine.named_modules() if not part.training]
        assert evaluating == ["norm", "drop"]
        assert "Lit.norm is in evaluation mode" in capsys.readouterr().out


def test_a_part_in_evaluation_mode_stays_so_after_a_fit_that_was_refused(tmp_path: Path) -> None:
    module = Lit().double()
    module.norm.eval()
    batch, began = rows(40, torch.float64), state(module)
    data = fl.FederatedData(batch, clients=[0] * 40, validation=batch)
    (tmp_path / "model.pt").touch()
    with pytest.raises(fl.UserError, match="name another run_dir"):
        trainer(rounds=1, run_dir=tmp_path).fit(module, data)
    trainer(rounds=1).fit(module, data)
    assert module.norm.running_mean.equal(began["norm.running_mean"])


def test_a_module_of_pytorch_lightning_trains_as_one_of_lightning() -> None:
    """It was taken for a plain module, and its steps were not called."""

    def trained(base: Any) -> dict[str, Tensor]:
        members = {name: vars(Lit)[name] for name in ("training_step", "validation_step")}
        members["forward"] = lambda self, x: self.net(x)
        members["configure_optimizers"] = lambda self: SGD(self.parameters(), lr=0.1)
        mine = type("Mine", (base,), members)()
        torch.manual_seed(1)
        mine.net = nn.Linear(6, 3)
        fit = trainer()
        fit.fit(mine, data(validation=0.2))
        assert {"loss", "val_loss"} <= {*fit.history}
        return state(mine)

    theirs = trained(pytorch_lightning.LightningModule)
    assert distance(theirs, trained(LightningModule)) == 0


class Template(Lit):
    """Has what templates of modules have besides."""

    def __init__(self) -> None:
        super().__init__()
        self.mean, self.began = MeanMetric(), 0

    def on_train_start(self) -> None:
        self.began += self.trainer.is_global_zero and self.global_rank == 0

    def on_train_epoch_end(self) -> None:
        """Do nothing."""

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        return batch | {"x": batch["x"] / (2 if self.trainer.training else 3)}

    def training_step(self, batch: Any, index: int) -> Tensor:
        self.mean(loss := super().training_step(batch, index))
        self.log("train/loss", self.mean)
        return torch.zeros(1, dtype=loss.dtype) + loss

    def configure_optimizers(self) -> SGD:
        rate = getattr(self.trainer, "own_rate", 0.1)  # which it lacks
        return SGD(self.trainer.model.parameters(), lr=rate)


def test_a_template_is_trained_and_scored_as_by_a_trainer() -> None:
    """Refused were its hooks, a metric's name, `self.trainer.model`, and a loss of shape (1,)."""
    mine, batch = Template().double(), rows(40, torch.float64)
    expected = lightning(deepcopy(mine), batch, STEPS)
    given = fl.FederatedData(batch, clients=[0] * 40, validation=batch)
    fit = trainer(rounds=1, local_steps=STEPS, batch_size=40)
    fit.fit(mine, given)
    assert distance(mine, expected) < 1e-12
    assert mine.began == 1
    loss = cross_entropy(mine.eval()(batch["x"] / 3), batch["label"])
    assert fit.validate(data=given)["val_loss"] == pytest.approx(loss.item(), rel=1e-12)


def test_a_module_may_be_its_own_data_module() -> None:
    mine, samples = Template(), [{name: t[0] for name, t in rows(1).items()}] * 9
    mine.train_dataloader = mine.val_dataloader = lambda: DataLoader(samples)
    fit = trainer()
    fit.fit(mine, datamodule=mine, clients=[0, 1, 2] * 3)
    assert fit.history["val_loss"].notna().all()


def only_in_training(self: Any, _: Any) -> None:
    """As a detector of torchvision, which returns boxes in evaluation."""
    assert self.training


def test_a_training_step_need_not_run_in_evaluation() -> None:
    """Unless a method looks at the model there."""
    mine, fit = module(training_step=step_with(only_in_training)), trainer()
    fit.fit(mine, data(validation=0.2))
    assert {"loss", "val_loss"} <= {*fit.history}
    with pytest.raises(fl.UserError, match="training_step fails in evaluation mode"):
        trainer("fedsol").fit(mine, data())


WITHOUT_SCORES = {
    "has no test_step": LightningModule.test_step,
    ".test_step logs nothing": lambda self, batch: self(batch["x"]),
}


@pytest.mark.parametrize("why", WITHOUT_SCORES)
def test_parts_without_scores_are_named(why: str, capsys: pytest.CaptureFixture) -> None:
    fit = trainer()
    fit.fit(module(test_step=WITHOUT_SCORES[why]), data(test=0.2, validation=0.2))
    assert "val_loss" in fit.history
    said = capsys.readouterr().out
    assert f"{why}, so the test part is not scored" in said
    assert said.count("not scored") == 1


def test_the_loss_of_a_round_is_the_federations(capsys: pytest.CaptureFixture) -> None:
    """A step may log another one by its name."""
    fit = trainer()
    fit.fit(module(training_step=step_with(lambda self, _: self.log("train/loss", 7.0))), data())
    assert (fit.history["train/loss"] < 7).all()
    assert "train/loss is the mean" in capsys.readouterr().out


class WithFunction(Lit):
    def __init__(self, hidden: int, function: Callable[[Any], Any]) -> None:
        super().__init__()
        self.save_hyperparameters()


def test_hyperparameters_that_cannot_be_written_are_left_out() -> None:
    """They ended the run with a traceback after its last round."""
    with pytest.warns(UserWarning, match="'function' removed from hparams"):
        run = trainer().fit(WithFunction(3, lambda x: x), data())
    written = torch.load(run.path / "model.ckpt", weights_only=False)["hyper_parameters"]
    assert written["hidden"] == 3
    assert "function" not in written


STEPS_OF_USERS: dict[str, Callable[..., Tensor]] = {
    "batch": lambda self, batch: self(batch["x"]).mean(),
    "batch and options": lambda self, batch, **_: self(batch["x"]).mean(),
    "arguments": lambda self, *arguments: self(arguments[0]["x"]).mean() + arguments[1],
}


@pytest.mark.parametrize("name", STEPS_OF_USERS)
def test_a_step_gets_the_index_where_it_takes_one(name: str) -> None:
    steps = StepModel(module(training_step=STEPS_OF_USERS[name]))
    with steps.attached():
        assert steps(rows()).loss.isfinite()
