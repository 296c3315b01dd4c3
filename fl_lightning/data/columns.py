"""Columns of numbers, block by block: finite, rounded and standardized."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fl_lightning.errors import UserError

BLOCK = 2**20
"""Numbers that are read together, so that a mapped file may be larger than the memory."""


def blocks(column: Tensor) -> tuple[Tensor, ...]:
    """Views of some rows each."""
    return column.split(max(1, BLOCK // max(1, column[:1].numel())))


def check_finite(column: Tensor, name: str, names: list[str] | None = None) -> None:
    """Raise a UserError if a number is NaN or infinite; it says in how many rows.

    Args:
        column: (n, ...) of any type; whole numbers are finite.
        name: What the message calls it.
        names: The names of its columns, if it has two dimensions and they have names.
    """
    bad = torch.zeros(column.shape[1] if column.ndim == 2 else 1, dtype=torch.int64)
    for block in blocks(column) if column.is_floating_point() or column.is_complex() else ():
        if not block.sum().isfinite():  # reads once; a sum of finite numbers may be infinite
            bad += (~block.isfinite()).view(len(block), len(bad), -1).any(2).sum(0).cpu()
    if bad.any():
        worst = int(bad.argmax())
        others = f" (and {n} more columns)" if (n := int((bad > 0).sum()) - 1) else ""
        if column.ndim == 2:
            name = f"column {names[worst]!r}" if names else f"column {worst} of {name}"
        raise UserError(
            f"{name}{others} is NaN or infinite in {int(bad[worst]):,} "
            f"of {len(column):,} rows: remove these rows, or fill in numbers"
        )


class Rounding:
    """Rounds a table to float32, block by block, and finds columns that lose their differences."""

    def __init__(self) -> None:
        self.low, self.high = np.array(np.inf), np.array(-np.inf)

    def of(self, exact: np.ndarray) -> np.ndarray:
        """A block in float32. `exact` is (rows, columns) float64."""
        self.low = np.minimum(self.low, exact.min(0))
        self.high = np.maximum(self.high, exact.max(0))
        with np.errstate(over="ignore"):  # `check_finite` names these columns
            return exact.astype(np.float32)

    def check(self, names: Sequence[str]) -> None:
        """Raise a UserError if rounding may move numbers by 1 % of the range of their column."""
        spread, most = self.high - self.low, np.maximum(np.abs(self.low), np.abs(self.high))
        exact = (most <= 2**24) & (self.low % 1 == 0) & (self.high % 1 == 0)  # of small integers
        narrow = (spread > 0) & (spread < 50 * np.finfo(np.float32).eps * most)
        for k in map(int, np.flatnonzero(narrow & ~exact)):
            raise UserError(
                f"column {names[k]!r} varies by {spread[k]:.3g} near {self.high[k]:.3g}, which "
                "float32 rounds away: subtract its smallest number"
            )


def standardize_columns(parts: Sequence[Tensor], index: Tensor) -> tuple[Tensor, Tensor]:
    """Shift and scale columns in place, to mean 0 and std 1 over the trained rows.

    Each part is (n, columns) float32. The trained rows are those at `index`, (m,) int64, of the
    first one. Returns the mean and the standard deviation that they had, (columns,) float64.
    """
    x = parts[0]
    trained = torch.zeros(len(x), dtype=torch.bool)
    trained[index] = True
    origin = blocks(x)[0].mean(0)  # far from 0 sums of squares and float32 would lose digits
    total, square = torch.zeros(2, x.shape[1], dtype=torch.float64)
    for block, used in zip(blocks(x), trained.split(len(blocks(x)[0])), strict=True):
        centered = block[used].sub_(origin)
        total += centered.sum(0, dtype=torch.float64)
        square += centered.square_().sum(0, dtype=torch.float64)
    mean = total / trained.sum()
    std = (square / trained.sum() - mean.square()).clamp(min=0).sqrt()
    std[std <= torch.finfo(x.dtype).eps * origin.abs()] = 1.0  # a constant column becomes 0
    for part in parts:
        for block in blocks(part):
            block.sub_(origin).sub_(mean.float()).div_(std.float())
    return origin + mean, std
