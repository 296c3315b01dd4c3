"""Callbacks of the package, fine-tuning and loggers, with modules of both kinds."""

from functools import cache
from math import isfinite
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.fabric.loggers import CSVLogger
from lightning_modules import Lit, data, owners, rows, trainer
from torch import nn

import fl_lightning as fl
from fl_lightning.callbacks import CALLBACKS
from fl_lightning.training import parts

METHODS = {"layer_strength": {"name": "fedsol", "scope": "all"}, "perturbation_drift": "fedlesam"}
"""Methods for callbacks that look at one; the others see scaffold."""


def plain() -> tuple[nn.Module, fl.FederatedData]:
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    batch = rows()
    given = {"clients": owners(), "test": 0.25, "validation": 0.2}
    return net, fl.FederatedData((batch["x"], batch["label"]), **given)


def lightning() -> tuple[nn.Module, fl.FederatedData]:
    return Lit(norm=False), data(test=0.25, validation=0.2)


KINDS = pytest.mark.parametrize("make", [plain, lightning])


MEASURES = sorted({*CALLBACKS} - {"early_stopping", "personal_weights"})  # which measure nothing


@cache
def scalars(make: Any, method: Any, *names: str) -> dict[str, float]:
    """The scalars of the second round."""
    own = [CALLBACKS[name] for name in names]
    fit = trainer(METHODS.get(method, "scaffold"), callbacks=own)
    fit.fit(*make())
    return dict(fit.history.iloc[-1])


@KINDS
@pytest.mark.parametrize("name", MEASURES)
def test_every_callback_measures(make: Any, name: str) -> None:
    found, method = scalars(make, name, name), name if name in METHODS else ""
    assert found.keys() > scalars(make, method).keys() or name == "diagnostics"
    assert all(isfinite(value) for value in found.values())


def test_what_compares_a_scalar_comes_behind_what_measures_it() -> None:
    measures = SimpleNamespace(on_round_end=print)
    compares = SimpleNamespace(on_round_end=print, monitor="mine")
    none: Any = SimpleNamespace(validation=None), Path(), None
    assert parts.callbacks([compares, measures], *none) == [measures, compares]


@pytest.mark.parametrize(("make", "score"), [(plain, "val/accuracy"), (lightning, "val_loss")])
def test_early_stopping_follows_what_chooses_the_best_model(make: Any, score: str) -> None:
    stop = fl.callbacks.EarlyStopping()
    fit = trainer(callbacks=[stop])
    fit.fit(*make())
    assert abs(stop.score) == pytest.approx(fit.history[score].iloc[-1])


@KINDS
@pytest.mark.parametrize("method", ["fedavg", "fedbabu", "knn_per", "perfedavg"])
def test_clients_are_fine_tuned(make: Any, method: str) -> None:
    fit = trainer(method, finetune_epochs=[1, 3])
    run = fit.fit(*make())
    scores = fit.history.filter(like="personal/accuracy").iloc[-1]
    assert [*scores.index] == [f"personal/accuracy_{epochs}" for epochs in (0, 1, 3)]
    assert scores.between(0, 1).all()
    assert scores.iloc[-1] > 0.3
    assert len((run.path / "personal.csv").read_text().splitlines()) == 5


@KINDS
def test_further_loggers_get_the_scalars(make: Any, tmp_path: Any) -> None:
    fit = trainer(loggers=[CSVLogger(tmp_path, "mine")])
    fit.fit(*make())
    (file,) = tmp_path.glob("mine/*/metrics.csv")
    assert "train/loss" in file.read_text().splitlines()[0].split(",")
