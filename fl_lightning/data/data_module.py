"""Rows behind the loaders of a LightningDataModule."""

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.data import Subset, SubsetRandomSampler, WeightedRandomSampler, default_collate

from fl_lightning.core.randomness import seeded_rng
from fl_lightning.data.rows import is_data_set, is_hub, raw_rows
from fl_lightning.errors import UserError

UNIMPLEMENTED = {"lightning.pytorch.core.hooks", "pytorch_lightning.core.hooks"}
"""Where loaders and hooks are defined that a data module does not have."""

OF_BATCHES = "on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer"
"""Hooks of a data module that change a Trainer's batches."""


def module_rows(datamodule: Any, clients: Any) -> dict[str, Any]:
    """The raw rows behind a data module's loaders: `train`, `validation` and `test`, if any.

    With them the owners `clients`, by default those that the data module names itself.
    """
    kind = type(datamodule).__name__
    if clients is None and not hasattr(datamodule, "clients"):
        raise UserError(
            f"{kind} does not say who owns its rows: give clients=, or write a method clients() of "
            f"{kind} that returns one owner for each row"
        )
    for hook in OF_BATCHES:
        if _defines(datamodule, hook):
            raise UserError(
                f"{kind} overrides {hook}, which no federation calls: do this in the data set, or "
                "in the steps of the LightningModule"
            )
    datamodule.prepare_data()
    found = dict[str, Any]()
    for stage, part, method in (
        ("fit", "train", "train_dataloader"),
        ("validate", "validation", "val_dataloader"),
        ("test", "test", "test_dataloader"),
    ):
        if not _defines(datamodule, method):
            continue
        # each stage begins alike, so that a random_split in setup is the same in all
        with seeded_rng(torch.initial_seed(), torch.device("cpu")):
            datamodule.setup(stage)
            loader = getattr(datamodule, method)()
            if loader is None or (isinstance(loader, Sequence) and not loader):
                continue
            if isinstance(loader, Sequence) and len(loader) == 1:
                (loader,) = loader
            found[part] = _behind(loader, method, part)
    return found | {"clients": datamodule.clients() if clients is None else clients}


def _defines(datamodule: Any, name: str) -> bool:
    """Whether a data module has a loader or hook of its own."""
    found = getattr(datamodule, name, None)
    return found is not None and getattr(found, "__module__", None) not in UNIMPLEMENTED


def _behind(loader: Any, method: str, part: str) -> Any:
    """The raw rows of the data set of a loader."""
    if not hasattr(loader, "dataset"):
        raise UserError(
            f"{method} gives a {type(loader).__name__}: let it give one DataLoader, whose "
            "data set can be split over clients"
        )
    sampler = getattr(loader, "sampler", None)
    if isinstance(sampler, SubsetRandomSampler | WeightedRandomSampler):
        raise UserError(
            f"{method} has a {type(sampler).__name__}, but a federation takes all rows of its data "
            "set alike: leave it out, and choose rows by torch.utils.data.Subset(dataset, rows)"
        )
    collate = getattr(loader, "collate_fn", None) or default_collate
    rows = loader.dataset
    if not (is_data_set(rows) or is_hub(rows, part)):
        rows = Subset(rows, range(len(rows)))  # a list of samples, which has no class of PyTorch
    return raw_rows(rows, part, collate)
