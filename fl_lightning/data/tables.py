"""Tables as tensors: data frames, and CSV files that are larger than the memory."""

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from os import PathLike
from os.path import abspath
from typing import Any, TypeAlias

import numpy as np
import pandas
import torch
from pandas import CategoricalDtype, DataFrame, Index, Series
from pandas.api import types
from torch import Tensor

from fl_lightning.data.columns import BLOCK, Rounding, check_finite
from fl_lightning.data.rows import check_columns
from fl_lightning.errors import UserError, nearest

TableLike: TypeAlias = DataFrame | PathLike[str] | str
"""A frame, or the path of a CSV file."""


@dataclass
class Table:
    """A table that was read.

    Attributes:
        x: (n, columns) float32; of a file, a map of a temporary file that lasts as long as `x`.
        y: (n,) float32 numbers, or int64 classes.
        owners: The column of owners: a Series or Categorical; or None.
        columns: The names of the columns in `x`.
        classes: The names of the classes of `y`, if it has some.
    """

    x: Tensor
    y: Tensor
    owners: Any
    columns: list[str]
    classes: tuple[str, ...]


def read_table(
    table: TableLike,
    target: str,
    owner: str | None,
    classes: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
) -> Table:
    """Read a data frame, or a CSV file chunk by chunk, for `FederatedData.from_table`.

    `owner` is the column of owners, if there is one.
    """
    targets: list[Any] = []
    owners: list[Any] = []
    names: list[str] = []
    rounding = Rounding()

    def read(chunks: Iterator[DataFrame]) -> Iterator[np.ndarray]:
        for chunk in chunks:
            names[:] = _input_columns(chunk, target, owner, columns)
            targets.append(chunk[target])
            if owner is not None:
                owners.append(chunk[owner])
            step = max(1, BLOCK // len(names))
            for start in range(0, len(chunk), step):
                part = chunk.iloc[start : start + step][names]
                yield rounding.of(part.to_numpy(dtype=np.float64, na_value=np.nan))

    if isinstance(table, DataFrame):
        x = _in_memory(read(iter([table])), len(table))
    else:
        x = _mapped(read(_chunks(table, target, owner)))
    check_finite(x, "x", names)
    rounding.check(names)
    y, found = _targets(_joined(targets), target, classes)
    return Table(x, y, _numbered(_joined(owners)) if owners else None, names, found)


def _chunks(path: Any, target: str, owner: str | None) -> Iterator[DataFrame]:
    """The frames of a CSV file; texts of target and owners are categories."""
    kinds: dict[Any, Any] = {} if owner is None else {owner: str}
    try:
        # of the first row, since pandas would rename a second column and cut rows that are longer
        names = pandas.read_csv(path, nrows=2, header=None, dtype=str).iloc[0]
        _check_unique(Index(names.dropna()))
        step = max(1, 4 * BLOCK // len(names))  # categories of each chunk are merged
        # all columns are read: with some, pandas would accept rows longer than the header
        chunks = pandas.read_csv(
            path, chunksize=step, dtype=kinds, index_col=False, low_memory=False
        )
        with chunks:
            for chunk in chunks:
                for name in {target, owner} & {*chunk}:
                    if not types.is_numeric_dtype(chunk[name]):
                        chunk[name] = chunk[name].astype("category")
                        found = chunk[name].cat.categories.to_series()
                        if name != owner and 0 < len(words := _no_numbers(found)) < len(found):
                            raise _mixed(name, words[0])
                yield chunk
    except UserError:
        raise
    except FileNotFoundError:
        raise UserError(f"there is no file {abspath(path)}: name a CSV file") from None
    except Exception as error:  # files that are compressed fail in many ways
        said = str(error).removeprefix("Error tokenizing data. ").strip()  # the rest has the line
        raise UserError(
            f"{path} cannot be read as a CSV file ({said}): give a frame, as of pandas.read_parquet"
        ) from error


def _check_unique(names: "Index[Any]") -> None:
    if not names.is_unique:
        twice = names[names.duplicated()][0]
        raise UserError(f"the table has several columns {twice!r}: give each another name")


def _input_columns(
    frame: DataFrame, target: str, owner: str | None, columns: Sequence[str] | None
) -> list[str]:
    """The columns that are neither target nor owners, or those wanted; all are numbers."""
    if frame.empty:
        raise UserError("the table has no rows: give at least one")
    if frame.columns.nlevels > 1:
        raise UserError(
            "the names of the table's columns have several levels: join them, as "
            "table.columns.map('_'.join) does"
        )
    _check_unique(frame.columns)
    clients = None if owner is None else [owner]
    check_columns(frame.columns, "the table", target=[target], clients=clients, columns=columns)
    given = [name for name in frame.columns if name not in (target, owner)]
    unnamed = [name for name in given if str(name).startswith("Unnamed: ")]  # by pandas
    if unnamed and columns is None:
        raise UserError(
            f"column {unnamed[0]!r} has no name in the file, as the index that DataFrame.to_csv "
            "writes: take it out of the file, or name the inputs as columns"
        )
    inputs = given if columns is None else [*columns]
    if not inputs:
        raise UserError("there are no inputs: the table needs a column besides target and clients")
    if target in inputs:
        raise UserError(f"{target!r} is the target: leave it out of columns")
    if texts := [name for name in inputs if not types.is_numeric_dtype(frame[name])]:
        cells = frame[texts[0]].dropna()
        words = [*cells] if isinstance(cells.dtype, CategoricalDtype) else _no_numbers(cells)
        make = f"get_dummies(table, columns={texts}, dtype=float)"
        if not words or cells.dtype.kind in "mM":  # numbers as objects, or times
            make = f"to_numeric(table[{texts[0]!r}])"
        raise UserError(
            f"columns {texts} hold no numbers (such as {[*words, *cells][:1]}): give columns "
            f"without them, or make numbers of them by pandas.{make}"
        )
    return inputs


def _in_memory(read: Iterator[np.ndarray], rows: int) -> Tensor:
    """The blocks as one tensor, without a second copy of them all."""
    x, row = np.empty((0, 0), np.float32), 0
    for block in read:
        if not row:
            x = np.empty((rows, block.shape[1]), np.float32)
        x[row : row + len(block)] = block
        row += len(block)
    return torch.from_numpy(x)


def _mapped(read: Iterator[np.ndarray]) -> Tensor:
    """The blocks in a file without a name, which goes with the tensor or the process."""
    width = 0
    with tempfile.TemporaryFile() as file:
        try:
            for block in read:
                width = block.shape[1]
                file.write(np.ascontiguousarray(block).data)
            file.flush()
        except OSError as error:
            raise UserError(
                f"the table does not fit {tempfile.gettempdir()} as numbers ({error}): "
                "name a folder of a larger disk in TMPDIR"
            ) from error
        return torch.from_numpy(np.memmap(file, np.float32, "r+").reshape(-1, width))


def _joined(parts: list[Any]) -> "Series[Any]":
    """The columns of the chunks as one."""
    if len(parts) == 1:
        return parts[0]
    categorical = [isinstance(part.dtype, CategoricalDtype) for part in parts]
    if not any(categorical):
        return pandas.concat(parts, ignore_index=True)
    if not all(categorical):
        raise _mixed(parts[0].name, parts[categorical.index(True)].iloc[0])
    return Series(types.union_categoricals(parts, sort_categories=True), name=parts[0].name)


def _no_numbers(cells: "Series[Any]") -> list[Any]:
    """The cells whose texts are no numbers."""
    return cells[pandas.to_numeric(cells.astype(str), errors="coerce").isna()].tolist()


def _mixed(name: Any, text: str) -> UserError:
    return UserError(
        f"column {name!r} holds numbers in some rows and texts in others, such as {text!r}: "
        f"correct these, or give a frame read with pandas.read_csv(..., dtype={{{name!r}: str}})"
    )


def _numbered(owners: "Series[Any]") -> "Series[Any]":
    """Owners; if they are categories and all of them texts of numbers, then by these numbers."""
    if not isinstance(owners.dtype, CategoricalDtype):
        return owners
    texts = owners.cat.categories.to_series().astype(str)
    numbers = pandas.to_numeric(texts, errors="coerce")
    if numbers.isna().any() or not numbers.is_unique:
        return owners
    named = owners.cat.rename_categories([*numbers])
    return named.cat.reorder_categories(sorted(numbers))


def _targets(
    column: "Series[Any]", name: str, classes: Sequence[str] | None
) -> tuple[Tensor, tuple[str, ...]]:
    """Numbers, or positions of classes with their names."""
    named = () if classes is None else tuple(map(str, classes))
    if missing := int(column.isna().sum()):
        raise UserError(
            f"column {name!r}, the target, is missing in {missing:,} of {len(column):,} rows: "
            "remove these rows"
        )
    if not types.is_numeric_dtype(column) or types.is_bool_dtype(column):
        kind = column.astype("category")
        held = types.infer_dtype(kind.cat.categories)  # of objects: which these are
        unnamed = not isinstance(column.dtype, CategoricalDtype)
        if held.startswith("mixed") or (unnamed and held not in ("string", "boolean")):
            raise UserError(
                f"column {name!r}, the target, holds {held} objects: make numbers of them, as "
                f"pandas.to_numeric(table[{name!r}]) does, or texts"
            )
        found = [*map(str, kind.cat.categories)]
        names = named or tuple(found)
        place = {text: k for k, text in enumerate(names)}
        places = np.array([place.get(text, -1) for text in found])
        if (places < 0).any():
            unknown = found[int(places.argmin())]
            raise UserError(
                f"column {name!r}, the target, holds {unknown!r}, which is none of the classes"
                f"{nearest(unknown, names)}"
            )
        return torch.from_numpy(places[kind.cat.codes]).long(), names
    if named:
        if types.is_float_dtype(column) and not (column % 1 == 0).all():
            raise UserError(f"column {name!r}, the target, holds fractions: leave out classes")
        return torch.from_numpy(column.to_numpy(np.int64, copy=True)), named
    rounding = Rounding()
    y = torch.from_numpy(rounding.of(column.to_numpy(np.float64)[:, None])[:, 0])
    check_finite(y, f"column {name!r}, the target,")
    rounding.check([name])
    return y, ()
