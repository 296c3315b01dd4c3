"""Whose rows: a partition from owners, lists of positions, a scheme, or a partition itself."""

from collections.abc import Mapping, Sequence, Set
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fl_lightning.data.partition import Partition
from fl_lightning.data.partitions import Scheme
from fl_lightning.errors import UserError, nearest


def partition_of(
    clients: Any, rows: int, labels: Tensor | None, seed: int
) -> tuple[Partition, tuple[str, ...]]:
    """The partition of the rows, and the clients' names in their order.

    `clients` are as `FederatedData` takes them, but no name of a column; `labels`, (rows,) int64,
    the classes of the rows if they have some.

    Raises:
        UserError: If it does not fit the rows, or a client has none.
    """
    names: Sequence[object] = ()
    if isinstance(clients, Partition):
        partition = clients
    elif callable(clients):
        partition = _by_scheme(clients, rows, labels, seed)
    elif _are_lists(clients):
        partition = _from_positions(clients, rows)
    else:
        partition, names = _from_owners(clients, rows)
    if (end := partition.end) > rows:
        raise UserError(f"clients holds row {end - 1}, but there are {rows:,} rows: count from 0")
    partition.check_none_is_empty("rows", "leave them out, or use fewer clients")
    return partition, tuple(map(str, names or range(len(partition))))


def owners_in(raw: Any, column: str) -> Any:
    """The column of owners, taken out of the raw rows; a UserError if there is none."""
    if not isinstance(raw, dict) or column not in raw:
        known = nearest(column, raw) if isinstance(raw, dict) else ", as rows have no names"
        raise UserError(f"clients: train has no column {column!r}{known}")
    return raw.pop(column)


def _by_scheme(scheme: Any, rows: int, labels: Tensor | None, seed: int) -> Partition:
    if labels is None:
        if isinstance(scheme, Scheme) and scheme.by_class:
            raise UserError(
                f"{scheme.scheme.__name__} splits by classes, and the target is none of integers: "
                "name another target, or use fl_lightning.partitions.iid, whose sigma makes sizes "
                "unequal"
            )
        labels = torch.zeros(rows, dtype=torch.int64)
    made = scheme(labels, seed=seed)
    if not isinstance(made, Partition):
        raise UserError(
            f"the scheme {scheme} gave a {type(made).__name__}: it must give a Partition"
        )
    return made


def _are_lists(clients: Any) -> bool:
    if isinstance(clients, Tensor | np.ndarray) or not isinstance(clients, Sequence):
        return False
    first = clients[0] if clients else ""
    if isinstance(first, Tensor | np.ndarray):
        return first.ndim > 0
    return isinstance(first, Sequence) and not isinstance(first, str | bytes)


def _from_positions(lists: Sequence[Any], rows: int) -> Partition:
    partition = Partition.from_lists(lists)
    if partition.end <= rows:
        held = partition.indices.bincount()
        if twice := int((held > 1).sum()):
            raise UserError(
                f"{twice:,} of {rows:,} rows are in clients more than once (row "
                f"{int(held.argmax())}): give each row one owner, or several by a Partition"
            )
    return partition


def _from_owners(owners: Any, rows: int) -> tuple[Partition, Sequence[object]]:
    import pandas

    if isinstance(owners, str | bytes | Mapping | Set) or not hasattr(owners, "__len__"):
        raise UserError(
            f"clients is {owners!r:.60}: give the name of a column, one owner for each row, a list "
            "of positions for each client, a Partition, or a scheme such as partitions.iid"
        )
    if np.ma.is_masked(owners):
        owners = pandas.Series(owners)  # in which masked values are missing
    elif not hasattr(owners, "dtype"):
        owners = pandas.Series([o.item() if isinstance(o, Tensor) else o for o in owners])
    if len(owners) != rows or getattr(owners, "ndim", 1) != 1:
        shape = tuple(getattr(owners, "shape", (len(owners),)))
        raise UserError(f"clients has shape {shape} for {rows:,} rows: give one owner for each row")
    owners = owners.numpy(force=True) if isinstance(owners, Tensor) else owners
    codes, names = pandas.factorize(owners, sort=True)
    if missing := int((codes < 0).sum()):
        raise UserError(
            f"{missing:,} of {rows:,} rows have no owner (row {int(codes.argmin())}): "
            "remove these rows, or name their owner"
        )
    texts = pandas.Index([*map(str, names)])
    if not texts.is_unique:
        raise UserError(
            f"several owners have the name {texts[texts.duplicated()][0]!r}, such as a number and "
            "a text: make all of them numbers, or all texts"
        )
    return Partition.from_owners(torch.from_numpy(codes).long(), len(names)), list(texts)
