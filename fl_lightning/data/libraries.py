"""Rows of other libraries: of Hugging Face data sets, and of LightningDataModules."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import Subset, SubsetRandomSampler, WeightedRandomSampler, default_collate

from fl_lightning.core.losses import IGNORED
from fl_lightning.core.randomness import seeded_rng
from fl_lightning.data.partition import Partition
from fl_lightning.data.roles import Target, partition_of, target_in
from fl_lightning.data.rows import (
    check_columns,
    has_transform,
    is_data_set,
    is_hub,
    raw_rows,
    shown_columns,
    torch_columns,
)
from fl_lightning.errors import UserError

UNIMPLEMENTED = {
    f"{package}.core.{part}"
    for package in ("lightning.pytorch", "pytorch_lightning")
    for part in ("hooks", "module")
}
"""The modules of Lightning that define steps, loaders and hooks for users to override."""

OF_BATCHES = "on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer"
"""Hooks of a data module that change a Trainer's batches."""


def hub_columns(
    dataset: Any, name: str, columns: Sequence[str] | None, owner: str | None = None
) -> list[str]:
    """The columns of a row, by default all that its format shows, without the owners.

    Raises:
        UserError: If it is no data set of one split in Hugging Face's manner, it has a transform,
            or a column is missing.
    """
    if not is_hub(dataset, name):
        raise UserError(
            f"{name} is a {type(dataset).__name__}: give a data set of the library datasets, "
            "or other data to FederatedData itself"
        )
    if has_transform(dataset):
        raise UserError(
            f"{name} has a transform, whose columns may be others: give it to FederatedData itself"
        )
    known = dataset.column_names
    check_columns(known, name, clients=[owner] if owner else None, columns=columns)
    shown = [column for column in shown_columns(dataset) if column != owner]
    return shown if columns is None else [*columns]


def read_hub(
    dataset: Any,
    name: str,
    columns: Sequence[str],
    tokens: Any = None,
    length: int | None = None,
    clients: Any = None,
    seed: int = 0,
) -> tuple[dict[str, Any], Any, tuple[str, ...]]:
    """Rows of a data set as `FederatedData.from_huggingface` makes them; messages call it `name`.

    Without `clients` one client has all blocks of tokens.

    Returns:
        The rows; their owners, as `FederatedData` takes them; and the clients' names if the owners
        do not name them.
    """
    columns = hub_columns(dataset, name, columns)
    if tokens is None or length is None:
        if (tokens is None) != (length is None):
            raise UserError("give tokens, a tokenizer, and length, the tokens in a block; or none")
        return torch_columns(dataset, columns, name), clients, ()
    owners = [0] * len(dataset) if clients is None else clients
    partition, names = partition_of(owners, len(dataset), None, seed)
    return *packed(dataset, columns, tokens, length, partition), names


def class_names(
    dataset: Any, parts: Mapping[str, Any], rows: dict[str, Any], target: Target
) -> tuple[str, ...]:
    """The names of the target's classes, if the data set has them.

    Raises:
        UserError: If a part that is a data set numbers its classes in another way.
    """
    if isinstance(target, list | tuple):
        return ()
    try:
        column = target_in(rows, target)
    except UserError:
        return ()

    def of(split: Any) -> tuple[str, ...]:
        feature = getattr(split, "features", {}).get(column)
        return tuple(getattr(feature, "names", None) or ())

    names = of(dataset)
    for part, split in parts.items():
        if names and (theirs := of(split)) and theirs != names:
            raise UserError(
                f"{part} has other classes in {column!r} than the data set, {theirs[:3]} for "
                f"{names[:3]} first: number them alike, as by its align_labels_with_mapping"
            )
    return names


def packed(
    dataset: Any, columns: Sequence[str], tokens: Any, length: int, partition: Partition
) -> tuple[dict[str, Any], Partition]:
    """The texts of each client as blocks of tokens, and the blocks of each client.

    The columns' texts in a row follow one another, before one end-of-text token.
    """
    ids: list[list[int]] = [[] for _ in range(len(dataset))]
    for column in columns:
        texts = list(dataset.with_format(None)[column][:])
        if not all(isinstance(text, str) for text in texts):
            raise UserError(
                f"column {column!r} does not hold texts alone: name columns of texts, columns=(...)"
            )
        encoded = tokens(texts, add_special_tokens=False)["input_ids"]
        for row, found in zip(ids, encoded, strict=True):
            row.extend(found)
    end = getattr(tokens, "eos_token_id", None)
    last = [] if end is None else [end]
    made: list[np.ndarray] = []
    for client in range(len(partition)):
        mine = partition[client].tolist()
        stream = [token for row in mine for token in (*ids[row], *last)]
        block = np.full((-(-len(stream) // length), length), IGNORED)
        block.flat[: len(stream)] = stream
        made.append(block)
    labels = torch.from_numpy(np.concatenate(made))
    pad = getattr(tokens, "pad_token_id", None)
    padding = next((token for token in (pad, end) if token is not None), 0)
    offsets = torch.tensor([0, *map(len, made)]).cumsum(0)
    rows = {"input_ids": labels.masked_fill(labels == IGNORED, padding), "labels": labels}
    return rows, Partition(torch.arange(len(labels)), offsets)


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
        # the hooks of a LightningModule that is its own data module are called with its steps
        if defines(datamodule, hook) and not hasattr(datamodule, "training_step"):
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
        if not defines(datamodule, method):
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


def defines(module: Any, name: str) -> bool:
    """Whether a module or a data module of Lightning has a step, a loader or a hook of its own."""
    found = getattr(module, name, None)
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
