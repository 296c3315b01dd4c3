"""What the steps of a LightningModule see and log."""

from typing import Any

import pytest
import torch
import torchmetrics
from fit_program import WithMetric
from lightning_modules import Lit, data, rows, trainer
from torch import nn

import fl_lightning as fl


class Stages(Lit):
    """Logs which step its Trainer is in, and the round."""

    def training_step(self, batch: Any, index: int) -> Any:
        self.log("trains", self.trainer.training and not self.trainer.validating)
        loss = super().training_step(batch, index)
        self.log("round_trained", self.current_epoch + 0 * loss)
        return loss

    def validation_step(self, batch: Any, index: int) -> None:
        self.log("validates", self.trainer.validating and not self.trainer.training)
        self.log("round_validated", float(self.current_epoch))

    def test_step(self, batch: Any, index: int) -> None:
        self.log("tests", self.trainer.testing and not self.trainer.validating)


def test_steps_know_which_they_are_and_the_round() -> None:
    fit = trainer(rounds=3)
    fit.fit(Stages(), data(validation=rows(9), test=rows(9)))
    for name in ("trains", "validates", "tests"):
        assert fit.history[name].tolist() == [1, 1, 1]
    for name in ("round_trained", "round_validated"):
        assert fit.history[name].tolist() == [0, 1, 2]


class Stops(Lit):
    def on_validation_end(self) -> None:
        self.trainer.should_stop = self.current_epoch == 1


def test_a_hook_of_validation_ends_the_run() -> None:
    fit = trainer(rounds=5)
    fit.fit(Stops(), data(validation=rows(9)))
    assert fit.history["round"].tolist() == [1, 2]


class OneStep(Lit):
    """Has one step for all parts, whose name comes from the mode of the module."""

    def training_step(self, batch: dict[str, torch.Tensor], index: int) -> Any:
        loss = nn.functional.cross_entropy(self(batch["x"]), batch["label"])
        self.log("train_loss" if self.training else "val_loss", loss)
        return loss

    validation_step = training_step


def test_a_name_may_come_from_the_mode_of_the_module() -> None:
    fit = trainer(rounds=1, batch_size=4)
    fit.fit(OneStep(), data(validation=rows(9)))
    assert {"train_loss_std", "val_loss"} <= {*fit.history}
    assert "val_loss_std" not in fit.history


class Sampled(Lit):
    """Scores noisy inputs, as a variational auto-encoder scores samples."""

    def validation_step(self, batch: dict[str, torch.Tensor], index: int) -> None:
        noisy = batch["x"] + torch.randn_like(batch["x"])
        super().validation_step({**batch, "x": noisy}, index)


def test_scores_of_random_numbers_depend_on_the_seed_alone() -> None:
    found = list[float]()
    for _ in range(2):
        module, given = Sampled(), data(validation=rows(9))
        torch.rand(1 + len(found))  # what a program draws besides
        fit = trainer(rounds=2)
        fit.fit(module, given)
        found += fit.history["val_loss"].tolist()
    assert found[:2] == found[2:]


class Reduced(Lit):
    def test_step(self, batch: dict[str, torch.Tensor], index: int) -> None:
        x, y = batch["x"], batch["label"]
        self.log("count", float(len(x)), reduce_fx="sum")
        self.log_dict({"most": x.max(), "most again": x.max()}, reduce_fx=torch.max)
        self.log("least", x.min(), reduce_fx="min")
        twos = y == 2
        self.log("of twos", x[twos].sum() / twos.sum().clamp(min=1), batch_size=int(twos.sum()))


def test_scores_are_reduced_as_they_are_logged() -> None:
    given = data(test=rows(23))
    found, x = trainer().test(Reduced(), given), given.test["x"]
    twos = x[given.test["label"] == 2]
    assert found["count"] == 23
    assert found["most"] == found["most again"] == x.max().item()
    assert found["least"] == x.min().item()
    assert found["of twos"] == pytest.approx(twos.sum().item() / len(twos))


class Best(WithMetric):
    def __init__(self) -> None:
        super().__init__()
        self.best = torchmetrics.MaxMetric()

    def on_validation_epoch_end(self) -> None:
        self.best(self.accuracy.compute())
        self.log("val_best", self.best.compute())


class OfBatches(WithMetric):
    def validation_step(self, batch: dict[str, torch.Tensor], index: int) -> None:
        self.log("val_acc", self.accuracy(self(batch["x"]), batch["label"]))


def test_it_is_said_that_metrics_do_not_count_on_over_rounds(capsys: Any) -> None:
    for made, times in ((Best(), 1), (WithMetric(), 0), (OfBatches(), 0)):
        trainer(rounds=2).fit(made, data(validation=rows(23)))
        assert capsys.readouterr().out.count("begins anew in each evaluation") == times


def test_it_is_said_that_images_are_scaled(capsys: Any) -> None:
    class Pixels(Lit):
        def training_step(self, batch: dict[str, torch.Tensor], index: int) -> Any:
            return super().training_step({**batch, "x": batch["x"].flatten(1)}, index)

    given = rows(9)
    for images, times in ((torch.ones(9, 1, 2, 3), 0), (torch.ones(9, 1, 2, 3).byte(), 1)):
        trainer().fit(Pixels(), fl.FederatedData({**given, "x": images}, clients=[0] * 9))
        assert capsys.readouterr().out.count("Pixels as floating numbers from 0 to 1") == times


def test_a_fit_without_progress_prints_nothing(capsys: Any) -> None:
    quiet = trainer(rounds=2, enable_progress_bar=False, finetune_epochs=[1])
    quiet.fit(Lit(), data(test=0.2))
    assert not capsys.readouterr().out
