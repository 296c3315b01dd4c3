"""A fit that is killed at any instant and resumed gives the results of one that was not."""

import os
import random
import re
import signal
from collections.abc import Callable
from contextlib import nullcontext
from functools import cache, partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import jobs
import pytest
import torch
from adapters import adapted
from least_squares import rows as regression_rows
from lightning_modules import Lit, data, distance, on_plateau, owners, rows, state, trainer
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD, AdamW

import fl_lightning as fl
from fl_lightning.distributed.signals import EXIT_PREEMPTED
from fl_lightning.executors import SequentialExecutor
from fl_lightning.lab.report import compare

ROUNDS, VISITS = 6, 24
ADAMW = partial(AdamW, lr=0.01)


def lightning(folder: Path) -> None:
    """AdamW, BatchNorm, dropout and ReduceLROnPlateau; four visits a round."""
    mine = type("Mine", (Lit,), {"configure_optimizers": on_plateau(make=ADAMW)})(dropout=0.3)
    fit = trainer(rounds=ROUNDS, run_dir=folder, checkpoint_every=2)
    fit.fit(mine, data(validation=data().train), resume=True)


def scaffold(folder: Path) -> None:
    """Control variates on the mean squared error; four visits a round."""
    x, y, owners = regression_rows()
    given = {"participation": 0.17, "loss": "mse", "checkpoint_every": 2}
    fit = trainer("scaffold", rounds=ROUNDS, run_dir=folder, **given)
    fit.fit(nn.Linear(1, 1), fl.FederatedData((x, y), clients=owners), resume=True)


def fedex_lora(folder: Path) -> None:
    """Adapters of a base that the server moves; four visits a round."""
    given = rows()
    fit = trainer("fedex_lora", rounds=ROUNDS, run_dir=folder, checkpoint_every=2)
    labeled = fl.FederatedData((given["x"], given["label"]), clients=owners())
    fit.fit(adapted(torch.float32), labeled, resume=True)


def attempt(fit: Callable[[Path], None], folder: Path, dies_at: int | None = None) -> None:
    """Fit in a process of its own, which may die in a visit of a client."""
    prepare = jobs.at_call(dies_at, SequentialExecutor, "_visit") if dies_at else lambda _: None
    process = jobs.start(folder, {}, lambda: (prepare(0), fit(folder)))
    assert jobs.end([process]) == [-9 if dies_at else 0], jobs.said(folder)


@cache
def never_killed(fit: Callable[[Path], None], folder: Path) -> dict[str, Any]:
    attempt(fit, folder)
    return jobs.results(folder)


@pytest.mark.parametrize("fit", [lightning, scaffold, fedex_lora])
def test_killed_and_resumed_equals_never_killed(fit: Any, tmp_path: Path) -> None:
    expected = never_killed(fit, tmp_path / "reference")
    draws, folder = random.Random(fit.__name__), tmp_path / "run"
    for saved in (2, 4):
        attempt(fit, folder, draws.randint(VISITS // 3 + 2, VISITS // 2))  # of the third round
        assert (folder / f"checkpoints/round-{saved}.ckpt").exists()
        assert not (folder / "model.pt").exists()
    attempt(fit, folder)
    assert jobs.results(folder) == expected
    assert len(expected["metrics"]) == ROUNDS


def test_a_signal_stops_a_fit_after_a_checkpoint(tmp_path: Path, capsys: Any) -> None:
    class Signal:
        def on_round_end(self, federation: Any, metrics: Any) -> None:
            if federation.round == 2:
                os.kill(os.getpid(), signal.SIGTERM)

    def fit(folder: str, **options: Any) -> Any:
        module = Lit(ADAMW, dropout=0.3)
        made = trainer(rounds=4, run_dir=tmp_path / folder, **options)
        return lambda **how: (made.fit(module, data(), **how), state(module))[1]

    logger = Mock()
    with pytest.raises(SystemExit) as stopped:
        fit("my run--2", callbacks=[Signal()], loggers=[logger])()
    assert stopped.value.code == EXIT_PREEMPTED
    logger.finalize.assert_called_once_with("failed")
    said = capsys.readouterr().out
    assert "stopped by SIGTERM after round 2 of 4" in said
    assert f'run_dir="{tmp_path / "my run--2"}" and fit(..., resume=True)' in said
    resumed = fit("my run--2", callbacks=[Signal()])(resume="auto")
    assert f"scalars: {tmp_path / 'my run--2'}/" in capsys.readouterr().out
    assert distance(resumed, fit("whole")()) == 0


@pytest.mark.parametrize(
    ("before", "now", "word"),
    [
        ({"loss": "mse"}, {"loss": nn.SmoothL1Loss()}, "loss was mse and is now SmoothL1Loss()"),
        ({"loss": nn.HuberLoss(delta=0.5)}, {"loss": nn.HuberLoss(delta=2.0)}, "delta=2.0"),
        ({"loss": partial(F.huber_loss, delta=0.5)}, {"loss": F.huber_loss}, "delta=0.5"),
    ],
)
def test_a_resumed_fit_keeps_its_loss(
    before: dict[str, Any], now: dict[str, Any], word: str, tmp_path: Path
) -> None:
    given = fl.FederatedData((torch.randn(20, 3), torch.randn(20, 1)), clients=[0, 1] * 10)
    trainer(run_dir=tmp_path / "run", **before).fit(nn.Linear(3, 1), given)
    with pytest.raises(fl.UserError, match=re.escape(word)):
        trainer(run_dir=tmp_path / "run", rounds=3, **now).fit(nn.Linear(3, 1), given, resume=True)


def test_a_resumed_fit_keeps_its_augmentation(tmp_path: Path) -> None:
    given = fl.FederatedData((torch.randn(8, 1, 8, 8), torch.zeros(8, 1)), clients=[0, 1] * 4)

    def fit(padding: int, resume: bool = False) -> None:
        module, augment = nn.Sequential(nn.Flatten(), nn.Linear(64, 1)), fl.CropFlip(padding)
        fit = trainer(run_dir=tmp_path / "run", loss="mse", augment=augment)
        fit.fit(module, given, resume=resume)

    fit(padding=1)
    with pytest.raises(fl.UserError, match=r"augment\.padding was 1 and is now 2"):
        fit(padding=2, resume=True)


@pytest.mark.parametrize(
    ("module", "word"),
    [
        (Lit(partial(SGD, lr=0.2)), "SGD(lr=0.1) and is now SGD(lr=0.2)"),
        (Lit(partial(AdamW, lr=0.1)), "AdamW(lr=0.1)"),
        (Lit(step=2), "StepLR(step_size=2, gamma=0.5)"),
        (Lit(dropout=0.5), "model.dropout was 0.0 and is now 0.5"),
    ],
    ids=["rate", "optimizer", "scheduler", "hyperparameter"],
)
def test_a_resumed_fit_keeps_its_module(module: Lit, word: str, tmp_path: Path) -> None:
    trainer(run_dir=tmp_path / "run").fit(Lit(), data())
    with pytest.raises(fl.UserError, match=re.escape(word)):
        trainer(run_dir=tmp_path / "run", rounds=3).fit(module, data(), resume=True)


class Plain(fl.Term):
    """No dataclass."""

    def __init__(self, mu: float):
        self.mu = mu


def plain(mu: float, **parts: Any) -> fl.Algorithm:
    """An algorithm with a function whose address differs in each start."""
    return fl.Algorithm(Plain(mu), rate=lambda k, K: 1.0, **parts)


@pytest.mark.parametrize(
    ("algorithm", "word"),
    [
        (plain(0.1, server=partial(SGD, lr=0.5)), "algorithm.server was None"),
        (plain(0.1, weight=fl.by_size), "by_size"),
        (plain(0.2), "mu=0.2"),
        (plain(0.1), ""),
    ],
    ids=["server", "weights", "coefficient", "same"],
)
def test_a_resumed_fit_keeps_its_algorithm(
    algorithm: fl.Algorithm, word: str, tmp_path: Path
) -> None:
    trainer(plain(0.1), run_dir=tmp_path / "run").fit(Lit(), data())
    refusal = pytest.raises(fl.UserError, match=re.escape(word)) if word else nullcontext()
    with refusal:
        trainer(algorithm, run_dir=tmp_path / "run", rounds=3).fit(Lit(), data(), resume=True)


def test_runs_of_other_rates_are_not_compared_as_one() -> None:
    rates = 0.1, 0.2
    runs = [trainer().fit(Lit(partial(SGD, lr=lr)), data(validation=rows(9))) for lr in rates]
    assert len(compare(runs).table(["val_loss"]).text) == 2
