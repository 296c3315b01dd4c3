"""ReduceLROnPlateau: rates are torch's own, of the scores that the run has recorded."""

from copy import deepcopy
from math import isnan
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning import Trainer
from lightning_modules import Lit, data, distance, module, on_plateau, rows, trainer
from torch.utils.data import DataLoader

import fl_lightning as fl
from fl_lightning.training.lightning_optimizer import local_optimizer

ROUNDS = 9
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "a loss": ({}, {}),
    "an accuracy": ({"monitor": "val_acc", "mode": "max", "threshold": 0.1, "patience": 1}, {}),
    "a pause and a floor": ({"cooldown": 1, "min_lr": 0.1, "threshold_mode": "abs"}, {}),
    "the loss of clients": ({"monitor": "train/loss", "threshold": 0.1}, {}),
    "what clients log": ({"monitor": "loss", "threshold": 0.1}, {}),
    "what a Trainer names so": ({"monitor": "val_loss_epoch"}, {}),
    "every third round": ({"frequency": 3}, {}),
    "few evaluations": ({}, {"evaluate_every": 2}),
}


def fitted(plateau: dict[str, Any], **options: Any) -> tuple[Any, Any]:
    """A module and its trainer, after `fit`."""
    mine = module(configure_optimizers=on_plateau(**plateau))
    fit = trainer(**{"rounds": ROUNDS, **options})
    fit.fit(mine, data(validation=rows(30)), resume="auto")
    return mine, fit


def of_torch(scores: list[float], frequency: int = 1, **plateau: Any) -> list[float]:
    """The rates that torch's scheduler gives for scores; nan is a round without one."""
    (optimizer,), (one,) = on_plateau(**plateau)(Lit())
    rates = list[float]()
    for round, score in enumerate(scores, 1):
        rates.append(optimizer.param_groups[0]["lr"])
        if round % frequency == 0 and not isnan(score):
            one["scheduler"].step(score)
    return rates


@pytest.mark.parametrize("executor", ["sequential", "stacked"])
@pytest.mark.parametrize("name", CASES)
def test_rates_are_those_of_torch_for_the_recorded_scores(name: str, executor: str) -> None:
    plateau, options = CASES[name]
    history = fitted(plateau, executor=executor, **options)[1].history
    score = plateau.get("monitor", "val_loss").removesuffix("_epoch")
    expected = of_torch([*history[score]], **plateau)
    assert [*history["local/lr"]] == expected
    assert min(expected) < 0.3


@pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers")
@pytest.mark.parametrize("frequency", [1, 2])
def test_one_client_is_trained_as_by_a_trainer(frequency: int) -> None:
    mine = module(configure_optimizers=on_plateau(frequency=frequency)).double()
    theirs, train, validation = deepcopy(mine), rows(40, torch.float64), rows(9, torch.float64)
    loaders = [DataLoader([0], collate_fn=lambda _, of=of: of) for of in (train, validation)]
    quiet = dict.fromkeys(("logger", "enable_progress_bar", "enable_checkpointing"), False)
    Trainer(accelerator="cpu", max_epochs=ROUNDS, **quiet).fit(theirs, *loaders)
    given = fl.FederatedData(train, clients=[0] * 40, validation=validation)
    ours = trainer(rounds=ROUNDS, batch_size=40)
    ours.fit(mine, given)
    assert distance(mine, theirs) < 1e-12
    assert ours.history["local/lr"].nunique() > 1


def test_a_monitor_that_is_not_strict_may_be_recorded_by_nobody() -> None:
    _, fit = fitted({"monitor": "of_nobody", "strict": False}, rounds=3)
    assert [*fit.history["local/lr"]] == [0.3] * 3


@pytest.mark.parametrize("executor", ["sequential", "stacked"])
def test_a_run_that_is_extended_equals_a_longer_one(executor: str, tmp_path: Path) -> None:
    """Its last round was evaluated out of turn, which a longer run would not have done."""
    own = {"executor": executor, "evaluate_every": 2}
    whole, fit = fitted({}, **own)
    fitted({}, rounds=5, run_dir=tmp_path / "run", **own)
    extended, longer = fitted({}, run_dir=tmp_path / "run", **own)
    assert [*longer.history["local/lr"]] == [*fit.history["local/lr"]]
    assert fit.history["local/lr"][5:].nunique() > 1
    assert distance(extended, whole) == 0


def test_the_options_of_a_run_have_the_monitor() -> None:
    text = local_optimizer(module(configure_optimizers=on_plateau(cooldown=1)), 4)[2]
    options = "factor=0.5, patience=0, cooldown=1, threshold=0.5"
    assert text == f"SGD(lr=0.3), ReduceLROnPlateau({options}), monitor='val_loss'"


def test_the_trainers_rate_replaces_optimizer_and_scheduler() -> None:
    _, fit = fitted({"monitor": "of_nobody"}, rounds=2, lr=0.2)
    assert [*fit.history["local/lr"]] == [0.2, 0.2]
