"""Rows of any structure: a tensor, or tuples and dictionaries of tensors, with n rows each."""

import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import keystr, tree_leaves, tree_leaves_with_path
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, default_collate

from fl_lightning.data.columns import check_finite
from fl_lightning.errors import UserError, first_sentence, nearest

Rows: TypeAlias = Tensor | tuple[Any, ...] | dict[str, Any]
"""A tree of tensors on the CPU, each with one entry for every row."""


def raw_rows(
    given: Any,
    name: str,
    collate: Callable[[list[Any]], Any] = default_collate,
    owner: str | None = None,
) -> Any:
    """Tuples, dictionaries and columns of what was given; a data set is read whole.

    Args:
        given: Tensors, arrays, tuples or dictionaries of them, a map-style data set of PyTorch, or
            one of Hugging Face.
        name: What messages call it.
        collate: Makes one batch of a list of samples of a map-style data set.
        owner: The column of owners, which stays as it is in a Hugging Face data set.
    """
    hub = is_hub(given, name)
    if hub and collate is default_collate and not has_transform(given):
        shown = [column for column in shown_columns(given) if column != owner]
        own = {owner: given.with_format(None)[owner][:]} if owner in given.column_names else {}
        return torch_columns(given, shown, name) | own
    if hasattr(given, "iloc"):
        raise UserError(f"{name} is a table: use FederatedData.from_table")
    as_stored = getattr(type(given), "__getitem__", None) is TensorDataset.__getitem__
    if as_stored and collate is default_collate:
        return given.tensors
    if isinstance(given, IterableDataset):
        raise UserError(
            f"{name} is an IterableDataset, whose rows have no number: give a map-style data set"
        )
    if hub or is_data_set(given):
        try:
            samples = [given[k] for k in range(len(given))]
            _warn_of_random_samples(given, name, collate)
            given = _tuples(collate(samples))
        except (RuntimeError, TypeError, LookupError) as error:
            raise UserError(
                f"the samples of {name} do not make one batch ({first_sentence(error)}): "
                "let the data set give tensors or numbers, of the same shape in every sample, or "
                "give collate_fn([data[k] for k in range(len(data))])"
            ) from error
    if isinstance(given, Mapping):
        return dict(given)
    return tuple(given) if isinstance(given, list) else given


def is_data_set(given: Any) -> bool:
    """Whether it gives samples by number: a data set of PyTorch, or an object that acts as one."""
    if isinstance(given, Dataset):
        return True
    columns = isinstance(given, Sequence | Mapping) or hasattr(given, "__array__")
    return not columns and hasattr(given, "__getitem__") and hasattr(given, "__len__")


def _warn_of_random_samples(given: Any, name: str, collate: Callable[[list[Any]], Any]) -> None:
    """Warn if the first samples differ when they are read again, as random transforms let them."""
    first = range(min(16, len(given)))
    once, again = (tree_leaves(collate([given[k] for k in first])) for _ in range(2))
    pairs = zip(once, again, strict=False)
    if any(isinstance(a, Tensor) and not a.equal(b) for a, b in pairs):
        warnings.warn(
            f"the samples of {name} differ when they are read again, but they are read once, so "
            "random transforms are drawn once: draw them in the training step, or of images by "
            "augment=CropFlip()",
            stacklevel=4,
        )


def is_hub(given: Any, name: str) -> bool:
    """Whether it is a Hugging Face data set, or looks like one."""
    if not (hasattr(given, "with_format") and hasattr(given, "column_names")):
        return False
    if isinstance(given, Mapping):
        splits = [*given]
        raise UserError(f"{name} has the splits {splits}: give one, such as {name}[{splits[0]!r}]")
    if not hasattr(given, "__len__"):
        raise UserError(f"{name} is a stream: load it whole, without streaming=True")
    return True


def has_transform(dataset: Any) -> bool:
    """Whether samples of a Hugging Face data set pass a function, which another format drops."""
    return (getattr(dataset, "format", None) or {}).get("type") == "custom"


def shown_columns(dataset: Any) -> list[str]:
    """The columns that samples of a Hugging Face data set have, which its format may choose."""
    form = dataset.format
    chosen = None if form.get("output_all_columns") else form.get("columns")
    return [*(chosen or dataset.column_names)]


def torch_columns(dataset: Any, columns: list[str], name: str) -> dict[str, Any]:
    """Columns of a Hugging Face data set in torch format.

    Raises:
        UserError: If a column holds what PyTorch does not know, such as dates.
    """
    read, found = dataset.with_format("torch"), dict[str, Any]()
    for column in columns:
        try:
            found[column] = read[column][:]
        except (TypeError, RuntimeError, ValueError, AttributeError) as error:
            raise UserError(
                f"{name}[{column!r}] is no tensor ({first_sentence(error)}): leave it out, or turn "
                "it into numbers"
            ) from error
    return found


def tensors(raw: Any, name: str) -> Any:
    """The tree of tensors of a tree of columns: arrays, tensors and lists of numbers.

    Raises:
        UserError: For a column that is no tensor: texts, or rows of different lengths.
    """
    if isinstance(raw, Mapping):
        return {key: tensors(column, f"{name}[{key!r}]") for key, column in raw.items()}
    if isinstance(raw, tuple) and not _is_text(raw):
        made = [tensors(part, f"{name}[{k}]") for k, part in enumerate(raw)]
        return type(raw)(*made) if hasattr(raw, "_fields") else tuple(made)
    if isinstance(raw, DataLoader) or is_data_set(raw):
        fix = "give one data set of all rows, such as ConcatDataset(parts), and their owners"
        if isinstance(raw, DataLoader):
            fix = "give its data set; the batch size is an option of the trainer"
        raise UserError(f"{name} is a {type(raw).__name__}, not a tensor: {fix}")
    if isinstance(raw, Tensor):
        column = raw.detach().cpu().resolve_conj().resolve_neg()  # whose bytes can be read
    elif _is_text(raw):
        raise UserError(
            f"{name} holds texts: leave it out, or turn it into numbers "
            "(FederatedData.from_huggingface(tokens=, length=) does so for a language model)"
        )
    else:
        if hasattr(raw, "to_numpy"):
            raw = raw.to_numpy()
        if np.ma.is_masked(raw):
            raise UserError(f"{name} has masked values: remove their rows, or fill in numbers")
        try:
            with warnings.catch_warnings():  # of a file mapped to read: nothing writes to rows
                warnings.filterwarnings("ignore", "The given NumPy array is not writable")
                column = torch.as_tensor(raw)
        except (ValueError, TypeError, RuntimeError) as error:
            raise UserError(
                f"{name} is no tensor ({first_sentence(error)}): "
                "give numbers, of the same shape in every row"
            ) from error
    if column.ndim == 0 or column.is_nested or column.layout != torch.strided:
        dense = "nested" if column.is_nested else f"{column.layout}"
        kind = dense if column.ndim else "a single number"
        raise UserError(f"{name} is {kind}: give a dense tensor with one entry for every row")
    return column


def checked_rows(rows: Rows, name: str) -> int:
    """The number of rows, at least one; every number is finite.

    Raises:
        UserError: If tensors differ in their number of rows, or hold NaN or infinite numbers.
    """
    paths = {len(column): path for path, column in columns(rows, name)}
    if len(paths) > 1:
        listed = ", ".join(f"{path} has {size:,}" for size, path in [*paths.items()][:2])
        raise UserError(f"the tensors of {name} differ in their rows, {listed}: give equally many")
    (size,) = paths
    if size == 0:
        raise UserError(f"{name} has no rows: give at least one")
    for path, column in columns(rows, name):
        check_finite(column, path)
    return size


def check_columns(known: Collection[str], of: str, **wanted: Sequence[str] | None) -> None:
    """Raise a UserError if a column that one of these arguments names is not known."""
    for argument, names in wanted.items():
        if missing := [name for name in names or () if name not in known]:
            near = nearest(missing[0], known)
            raise UserError(f"{argument}: {of} has no column {missing[0]!r}{near}")


def columns(rows: Any, name: str) -> list[tuple[str, Tensor]]:
    """The tensors of a tree with their paths, such as `train['image']`."""
    return [(name + keystr(path), column) for path, column in tree_leaves_with_path(rows)]


def check_alike(rows: Rows, name: str, train: Rows) -> None:
    """Raise a UserError unless the rows are like the training rows, in any number."""
    kinds, wanted = (
        [(path, t.dtype, t.shape[1:]) for path, t in columns(r, "")] for r in (rows, train)
    )
    if kinds != wanted:
        texts = [
            ", ".join(f"{path or 'tensor'} {dtype} {tuple(shape)}" for path, dtype, shape in kind)
            for kind in (kinds, wanted)
        ]
        raise UserError(
            f"a row of {name} is ({texts[0]}), one of train ({texts[1]}): make them alike"
        )


def _is_text(raw: Any) -> bool:
    if isinstance(raw, np.ndarray):
        return raw.dtype.kind in "OUS"
    return isinstance(raw, str) or (
        isinstance(raw, list | tuple) and bool(raw) and _is_text(raw[0])
    )


def _tuples(batch: Any) -> Any:
    """The tree with tuples for lists of tensors, as `default_collate` makes of tuples."""
    if isinstance(batch, Mapping):
        return {key: _tuples(part) for key, part in batch.items()}
    if isinstance(batch, list) and not _is_text(batch):
        return tuple(map(_tuples, batch))
    return batch
