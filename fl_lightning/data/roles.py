"""Roles of columns: whose a row is, and what is to be predicted of it."""

from collections.abc import Mapping, Sequence, Set
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fl_lightning.data.dataset import check_labels
from fl_lightning.data.dataset import rows as count
from fl_lightning.data.partition import Partition
from fl_lightning.data.partitions import Scheme
from fl_lightning.data.rows import Rows
from fl_lightning.errors import UserError, nearest

Target = str | int | list[Any] | tuple[Any, ...] | None
"""The place of the target in rows, or places of several."""

TARGETS = "labels", "label", "target", "y"
"""Names of a target that need not be given."""


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


def divided(rows: Rows, target: Target) -> tuple[Rows, Any]:
    """The inputs and the target of rows: see `FederatedData` and its `divided`."""
    if isinstance(rows, tuple) and len(rows) == 1:
        (rows,) = rows
    if isinstance(rows, Tensor):
        return rows, rows
    parts: dict[Any, Any] = rows if isinstance(rows, dict) else dict(enumerate(rows))
    wanted = target if isinstance(target, list | tuple) else [target]
    places = [target_in(rows, one) for one in wanted]
    others = {key: part for key, part in parts.items() if key not in places}
    y: dict[Any, Any] = {key: parts[key] for key in places}
    x, of_y = (part if isinstance(rows, dict) else tuple(part.values()) for part in (others, y))
    x = next(iter(others.values())) if len(others) == 1 else x
    return x, of_y if wanted is target else y[places[0]]


def target_in(rows: dict[str, Any] | tuple[Any, ...], target: str | int | None) -> str | int:
    """The place of the target, as in `divided`."""
    if isinstance(rows, tuple):
        place = len(rows) - 1 if target is None else target
        if not isinstance(place, int) or place not in range(-len(rows), len(rows)):
            raise UserError(f"target is {place!r}: give a position in rows of {len(rows)} tensors")
        return place % len(rows)
    if target is not None:
        if target not in rows:
            raise UserError(f"target: there is no column {target!r}{nearest(target, rows)}")
        return target
    found = [name for name in TARGETS if name in rows]
    if len(found) != 1:
        raise UserError(
            f"which of the columns {', '.join(map(str, rows))} is the target is not clear: "
            f"name it, such as target={[*found, *rows][0]!r}"
        )
    return found[0]


def labels_of(rows: Rows, target: Target) -> Tensor | None:
    """(n,) int64, the classes of rows; None if their target is not one whole number, 0 or more."""
    try:
        y = divided(rows, target)[1]
    except UserError:
        return None
    if not isinstance(y, Tensor) or y.ndim != 1 or y.is_floating_point() or y.is_complex():
        return None
    classes = y.long()  # of uint16 PyTorch has no minimum
    return classes if int(classes.min()) >= 0 else None


def check_classes(rows: Rows, target: Target, classes: tuple[str, ...], name: str) -> None:
    """Raise a UserError unless the target holds positions in the classes, if these are named."""
    if classes:
        y = divided(rows, target)[1]
        check_labels(f"the target of {name}", y, count(rows), classes)
