"""The target of rows: which tensor it is, and the classes that it may hold."""

from typing import Any

import torch
from torch import Tensor

from fl_lightning.data.rows import Rows
from fl_lightning.errors import UserError, nearest

TARGETS = "labels", "label", "target", "y"
"""Names of a target that need not be given."""


def divided(rows: Rows, target: str | int | None) -> tuple[Rows, Tensor]:
    """The inputs and the target of rows: see `FederatedData` and its `divided`."""
    if isinstance(rows, tuple) and len(rows) == 1:
        (rows,) = rows
    if isinstance(rows, Tensor):
        return rows, rows
    parts: dict[Any, Any] = rows if isinstance(rows, dict) else dict(enumerate(rows))
    place = target_in(rows, target)
    others = {key: part for key, part in parts.items() if key != place}
    if len(others) == 1:
        return next(iter(others.values())), parts[place]
    return (others if isinstance(rows, dict) else tuple(others.values())), parts[place]


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


def labels_of(rows: Rows, target: str | int | None) -> Tensor | None:
    """(n,) int64, the classes of rows; None if their target is not one whole number, 0 or more."""
    try:
        y = divided(rows, target)[1]
    except UserError:
        return None
    if not isinstance(y, Tensor) or y.ndim != 1 or y.is_floating_point() or y.is_complex():
        return None
    classes = y.long()  # of uint16 PyTorch has no minimum
    return classes if int(classes.min()) >= 0 else None


def check_classes(
    rows: Rows, target: str | int | None, classes: tuple[str, ...], name: str
) -> None:
    """Raise a UserError unless the target holds positions in the classes, if these are named."""
    if not classes:
        return
    y = divided(rows, target)[1]
    if not isinstance(y, Tensor) or y.dtype != torch.int64 or y.ndim != 1:
        raise UserError(
            f"classes are named, but the target of {name} is not one int64 number a row: "
            "give positions in classes, or leave out classes"
        )
    low, high = int(y.min()), int(y.max())
    if low < 0 or high >= len(classes):
        raise UserError(
            f"the target of {name} goes from {low} to {high}, but classes names {len(classes)}: "
            f"give positions 0 to {len(classes) - 1}, or name more classes"
        )
