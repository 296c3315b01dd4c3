"""What users of Lightning's Trainer write by habit gets the federated way in one sentence."""

from collections.abc import Callable
from typing import Any

import pytest
from lightning.pytorch.loggers import CSVLogger
from lightning_modules import Lit, data, refused, rows, trainer
from torch.utils.data import DataLoader

LOADER: Any = DataLoader([rows(1)])

CALLS: dict[str, tuple[Callable[[], Any], tuple[str, ...]]] = {
    "batches of a step": (
        lambda: trainer(accumulate_grad_batches=2),
        ("'accumulate_grad_batches'", "larger batch_size"),
    ),
    "the epochs of a validation": (
        lambda: trainer(check_val_every_n_epoch=2),
        ("give evaluate_every",),
    ),
    "the folder": (lambda: trainer(default_root_dir="runs"), ("give run_dir",)),
    "what only a Trainer has": (
        lambda: trainer(num_sanity_val_steps=0),
        ("'num_sanity_val_steps'", "Lightning's Trainer", "leave it out"),
    ),
    "a logger": (lambda: trainer(logger=CSVLogger("logs")), ("loggers=[...]",)),
    "loaders in their places": (
        lambda: trainer().fit(Lit(), LOADER, LOADER),
        ("fit(module, data=None", "too many positional", "data=FederatedData("),
    ),
    "loaders by name": (
        lambda: trainer().fit(Lit(), train_dataloaders=LOADER),
        ("'train_dataloaders'", "data=FederatedData("),
    ),
    "the module by another name": (lambda: trainer().fit(model=Lit()), ("'module'",)),
    "a checkpoint to test": (
        lambda: trainer().test(ckpt_path="best"),
        ("test(module=None", "'ckpt_path'"),
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_arguments_of_a_trainer(name: str) -> None:
    call, words = CALLS[name]
    refused(call, *words)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("callback_metrics", r"trainer\.history"),
        ("checkpoint_callback", r"run\.model\(module, best=True\)"),
        ("predict", r"module\.eval\(\)\(x\)"),
        ("another", "FederatedTrainer has no 'another'$"),
    ],
)
def test_attributes_of_a_trainer(name: str, words: str) -> None:
    with pytest.raises(AttributeError, match=words):
        getattr(trainer(), name)
    assert not hasattr(trainer(), name)


def test_what_the_sentences_name_is_there() -> None:
    fit = trainer()
    run = fit.fit(Lit(), data(validation=0.2))
    assert fit.history["val_loss"].notna().all()
    assert run.model(Lit(), best=True).eval()(rows()["x"]).shape == (len(rows()["x"]), 3)
    assert {"best.pt", "model.ckpt", "checkpoints"} <= {path.name for path in run.path.iterdir()}
