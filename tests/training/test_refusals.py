"""What does not fit together is refused in one sentence, before there is a folder."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning import LightningModule
from lightning.fabric import Fabric
from lightning.pytorch.callbacks import EarlyStopping as OfLightning
from lightning_modules import Lit, data, module, owners, refused, rows, trainer
from torch import nn

import fl_lightning as fl

X, Y = torch.randn(41, 5), torch.randn(41)


def numbers(**options: Any) -> fl.FederatedData:
    return fl.FederatedData((X, Y), clients=owners(), **options)


def bad_step(self: Any, batch: Any, index: int) -> None:
    batch["z"]


class Renamed:
    def on_round_end(self, federation: Any, scores: Any, every: int = 1) -> None: ...


net = partial(nn.Linear, 5, 1)


def logs_loss(self: Any, batch: Any) -> None:
    self.log("loss", self(batch["x"]).sum())


IMAGES = torch.zeros(2, 3, 4, 4, dtype=torch.uint8)

CALLS: dict[str, tuple[Callable[[], Any], tuple[str, ...]]] = {
    "one name in two steps": (
        lambda: trainer().fit(module(validation_step=logs_loss), data(validation=rows(9))),
        ("'loss' in training_step and in validation_step", "two names"),
    ),
    "one name in two parts": (
        lambda: trainer().fit(
            module(test_step=Lit.validation_step), data(test=0.2, validation=0.2)
        ),
        ("in test_step and in validation_step",),
    ),
    "a mask that would be scaled": (
        lambda: trainer().fit(
            Lit(), fl.FederatedData({"y": IMAGES[:, :1].clone(), "x": IMAGES}, clients=[0, 1])
        ),
        ("uint8 (2, 1, 4, 4)", "int64"),
    ),
    "no data": (lambda: trainer().fit(Lit()), ("FederatedData",)),
    "a tuple": (lambda: trainer().fit(Lit(), (X, Y)), ("tuple", "FederatedData")),
    "both": (lambda: trainer().fit(Lit(), data(), datamodule=3), ("one of them",)),
    "clients": (lambda: trainer().fit(Lit(), data(), clients=Y), ("clients=",)),
    "a datamodule": (lambda: trainer().fit(Lit(), datamodule=3), ("int", "clients=")),
    "resume": (lambda: trainer().fit(Lit(), data(), resume="yes"), ("'yes'",)),
    "resume nothing": (lambda: trainer().fit(Lit(), data(), resume=True), ("run_dir",)),
    "option": (lambda: trainer(momentun=0.9), ("momentum",)),
    "of the data": (lambda: trainer(validation=0.1), ("FederatedData",)),
    "of fit": (lambda: trainer(resume=True), ("fit(..., resume=True)",)),
    "of a Trainer": (lambda: trainer(max_epochs=3), ("give rounds",)),
    "of the algorithm": (lambda: trainer(personal="head"), ('"personal": ...}',)),
    "a text": (lambda: trainer(lr="fast"), ("lr", "'fast'", "number")),
    "out of range": (lambda: trainer(rounds=0), ("rounds", "at least 1")),
    "without effect": (lambda: trainer(parallel_clients=3), ("add executor stacked",)),
    "epochs and steps": (lambda: trainer(local_epochs=2, local_steps=3), ("local_steps",)),
    "devices": (lambda: trainer(devices=0), ("devices",)),
    "strategy": (lambda: trainer(strategy="ddp_notebook"), ("ddp_notebook", "strategy ddp")),
    "precision": (lambda: trainer(precision="64-true"), ("32-true",)),
    "algorithm": (lambda: trainer("fedag"), ("fedavg",)),
    "a number": (lambda: trainer(3), ("3", "name")),
    "a file": (lambda: trainer("mine.py:fedmine"), ("'mine.py:fedmine'", "an Algorithm")),
    "a function": (lambda: trainer(fl.algorithms.fedavg), ("function", "an Algorithm")),
    "of algorithm": (lambda: trainer({"name": "fedprox", "nu": 1}), ("mu",)),
    "modifier": (lambda: trainer({"name": "scaffold", "perturb": "lesm"}), ("lesam",)),
    "nameless": (lambda: trainer({"name": "scaffold", "perturb": {"rho": 1}}), ("perturb", "rho")),
    "no word": (lambda: trainer({"name": "fedcm", "personal": "word"}), ("personal", "'word'")),
    "coefficient": (
        lambda: trainer({"name": "fedprox", "mu": -1}).fit(Lit(), data()),
        ("mu of fedprox",),
    ),
    "momentum": (lambda: trainer(momentum=0.9).fit(Lit(), data()), ("momentum", "lr")),
    "compiled": (
        lambda: trainer().fit(torch.compile(Lit()), data()),
        ("OptimizedModule", "Lit", "compile=True"),
    ),
    "of Fabric": (
        lambda: trainer().fit(Fabric(accelerator="cpu", devices=1).setup(Lit()), data()),
        ("_FabricModule", "Lit"),
    ),
    "metrics": (lambda: trainer(metrics=["r2"]).fit(Lit(), data()), ("LightningModule", "metrics")),
    "step": (
        lambda: trainer().fit(module(validation_step=bad_step), data(validation=rows(9))),
        ("Mine.validation_step", "'z'"),
    ),
    "no step for clients' scores": (
        lambda: trainer(callbacks=[fl.callbacks.ClientScores]).fit(
            module(test_step=LightningModule.test_step), data(test=0.2)
        ),
        ("Mine", "test_step", "validation="),
    ),
    "no step": (
        lambda: trainer().validate(
            module(validation_step=LightningModule.validation_step), data(validation=rows(9))
        ),
        ("Mine", "validation_step", "test="),
    ),
    "callback": (lambda: trainer(callbacks=3), ("callbacks=[...]",)),
    "no logger": (lambda: trainer(loggers=["csv"]), ("'csv'", "CSVLogger")),
    **{
        f"{measure.__name__} of nothing": (
            lambda measure=measure: trainer(callbacks=[measure]).fit(Lit(), data()),
            (measure.__name__, "test=0.2"),
        )
        for measure in (fl.callbacks.PersonalScores, fl.callbacks.EvaluateModels)
    },
    "no augmentation": (lambda: trainer(augment=fl.CropFlip), ("CropFlip(...)",)),
    "a class of terms": (lambda: trainer(fl.terms.SAM), ("algorithm is <class", "an Algorithm")),
    "a logger that cannot save": (
        lambda: trainer(loggers=[SimpleNamespace(log_metrics=print, finalize=print)]),
        ("is no logger", "log_metrics, save and finalize"),
    ),
    "of Lightning": (
        lambda: trainer(callbacks=[OfLightning("loss")]).fit(Lit(), data()),
        ("EarlyStopping", "fl_lightning.callbacks"),
    ),
    "a hook's argument": (
        lambda: trainer(callbacks=[Renamed()]).fit(Lit(), data()),
        ("Renamed.on_round_end", "'scores'", "federation, metrics"),
    ),
    "BatchNorm": (
        lambda: trainer(batch_size=1).fit(Lit(), data()),
        ("Lit", "BatchNorm", "batch_size"),
    ),
    "fine-tuning": (
        lambda: trainer(loss="mse", finetune_epochs=1).fit(net(), numbers(test=(X, Y))),
        ("finetune_epochs", "classes", "test=0.2"),
    ),
    "no history": (lambda: trainer().history, ("before fit",)),
    "nothing to score": (lambda: trainer().validate(data=data()), ("fit",)),
    "nothing to score on": (lambda: trainer().validate(Lit()), ("data=",)),
    "a tuple to score": (lambda: trainer().test(Lit(), (X, Y)), ("tuple", "FederatedData")),
    "a tuple of each client": (
        lambda: trainer().test(Lit(), (X, Y), per_client=True),
        ("owners", "FederatedData"),
    ),
    "no part": (lambda: trainer().test(Lit(), data()), ("test=0.2",)),
    "no owners": (
        lambda: trainer().test(Lit(), data(test=rows(9)), per_client=True),
        ("owners", "test=0.2"),
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_arguments_that_do_not_fit(name: str) -> None:
    call, words = CALLS[name]
    refused(call, *words)


def test_two_threads_do_not_fit_at_the_same_time() -> None:
    found = list[str]()

    def fit() -> None:
        with pytest.raises(fl.UserError) as error:
            trainer().fit(Lit(), data())
        found.append(str(error.value))

    class Fits:
        def on_round_end(self, federation: Any, metrics: Any) -> None:
            other = Thread(target=fit)
            other.start()
            other.join()

    trainer(rounds=1, callbacks=[Fits()]).fit(Lit(), data())
    assert len(found) == 1
    assert "thread" in found[0]


def test_a_folder_with_a_run_is_not_written_over(tmp_path: Path) -> None:
    fit = trainer(run_dir=tmp_path / "run")
    fit.fit(Lit(), data())
    with pytest.raises(fl.UserError, match=r"fit\(\.\.\., resume=True\).* run_dir"):
        fit.fit(Lit(), data())


def test_what_is_printed_names_arguments(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    fit = trainer("fedbabu", run_dir=tmp_path / "run", participation=0.3)
    given = data(validation=rows(9))
    fit.fit(Lit(), given)
    fit.fit(Lit(), given, resume=True)
    said = capsys.readouterr().out
    assert "\n9 samples are held out for validation" in said
    for words in ("participation=0.3 of 4", "finetune_epochs=[1, 5]", "raise rounds"):
        assert words in said
    assert said.count("--") == said.count("tensorboard --logdir") == 2


def test_notebooks_show_the_sentence_alone() -> None:
    """IPython asks for these lines; the traceback of one that another exception caused stays."""
    with pytest.raises(fl.UserError) as refused:
        fl.FederatedTrainer("fedavgg")
    (shown,) = refused.value._render_traceback_()
    assert shown.startswith("UserError: there is no algorithm 'fedavgg'")
    refused.value.__cause__ = ZeroDivisionError("division by zero")
    assert "ZeroDivisionError: division by zero" in refused.value._render_traceback_()
