"""Any data with its clients: rows of tensors, data sets and tables, each row with its owner."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from fl_lightning.core.randomness import derived_seed
from fl_lightning.data import roles
from fl_lightning.data.columns import standardize_columns
from fl_lightning.data.held_out import hold_out_of_clients, owners_of_held
from fl_lightning.data.libraries import class_names, hub_columns, module_rows, read_hub
from fl_lightning.data.partition import Partition, smallest_median_largest
from fl_lightning.data.partitions import Scheme
from fl_lightning.data.rows import Rows, check_alike, checked_rows, raw_rows, tensors
from fl_lightning.errors import UserError

if TYPE_CHECKING:
    from fl_lightning.data.tables import TableLike


class FederatedData:
    """Rows with their owners, the clients, and rows for validation and testing.

    A row is one entry of a batch. A LightningModule gets batches of the structure of `train`, a
    plain module all but the target. Tensors are neither copied nor converted: images may be uint8,
    and a file that is mapped into memory stays on disk.

    Args:
        train: A tensor with one entry for each row; a tuple or dictionary of such tensors, NumPy
            arrays or lists of numbers; a map-style data set of PyTorch, which is read once and
            whole by its default collation; or a Hugging Face data set.
        test: Rows of the same structure, which have no owners; or a fraction, above 0 and below 1,
            of each client's rows, which keep their owner.
        validation: As `test`.
        clients: The name of a column of owners, which is then no part of the rows; one owner for
            each row, a number or a text; a list of positions for each client, where a row in no
            list is not used; a `Partition`; a scheme of `fl_lightning.partitions`; or another
            function `scheme(y, seed) -> Partition`.
        target: The target: a column of a dictionary, or a position in a tuple; or a list of
            several, which are a dictionary or a tuple then. By default the last of a tuple, or the
            column of a dictionary that is named labels, label, target or y.
        classes: The names of the classes, if the target holds positions in them.
        seed: The seed of schemes and fractions.

    Attributes:
        train: The rows as tensors on the CPU. Those that a fraction takes for `test` or
            `validation` are among them, but not in `partition`.
        test: The rows as tensors on the CPU, or None.
        validation: As `test`.
        partition: The training rows of each client.
        parts: By the name of a part with owners, "test" or "validation", its rows of each client.
        names: The names of the clients: the sorted owners as texts, else "0", "1", ...
        unit: Origin and size of the unit of the target, if it was standardized.
        scheme: The partition scheme of `fl_lightning.partitions` that `clients` was, or None.

    Raises:
        UserError: If rows, owners and parts do not fit together, or hold texts, NaN or infinity.

    Example::

        x, y = torch.randn(1000, 5), torch.randn(1000)
        data = fl.FederatedData((x, y), clients=torch.arange(1000) % 20, test=0.2)
    """

    def __init__(
        self,
        train: Any,
        test: Any = None,
        validation: Any = None,
        *,
        clients: Any,
        target: roles.Target = None,
        classes: Sequence[str] = (),
        seed: int = 0,
    ) -> None:
        self.target, self.classes, self.seed = target, tuple(map(str, classes)), seed
        self.unit, self.scheme = (0.0, 1.0), clients if isinstance(clients, Scheme) else None
        column = clients if isinstance(clients, str) else None
        raw = raw_rows(train, "train", owner=column)
        clients = clients if column is None else roles.owners_in(raw, column)
        self.train: Rows = tensors(raw, "train")
        total = checked_rows(self.train, "train")
        if target is not None:
            self.divided(self.train)
        labels = roles.labels_of(self.train, target)
        self.partition, self.names = roles.partition_of(clients, total, labels, seed)
        roles.check_classes(self.train, target, self.classes, "train")
        self.parts, self._left = dict[str, Partition](), 1.0
        self.test = self._part("test", test, column)
        self.validation = self._part("validation", validation, column)

    def _part(self, part: str, given: Any, column: str | None) -> Rows | None:
        if given is None:
            return None
        if isinstance(given, float | int):
            return self._hold_out(part, given)
        raw = raw_rows(given, part, owner=column)
        if isinstance(raw, dict):
            raw.pop(column, None)
        rows: Rows = tensors(raw, part)
        checked_rows(rows, part)
        check_alike(rows, part, self.train)
        roles.check_classes(rows, self.target, self.classes, part)
        return rows

    def _hold_out(self, part: str, fraction: float) -> Rows:
        """Take a fraction of each client's rows, and keep whose they are."""
        if not 0 < fraction < self._left:
            left = "above 0 that leaves rows to train on, or rows of the structure of train"
            raise UserError(f"{part} is {fraction}: give a fraction {left}")
        before, seed = self.partition, derived_seed(self.seed, part)
        self.partition, held = hold_out_of_clients(before, fraction / self._left, seed)
        self._left -= fraction
        if not len(held):
            raise UserError(f"{part} = {fraction} takes no row: give more, or clients of more rows")
        self.parts[part] = owners_of_held(before, held)
        return tree_map(lambda column: column[held], self.train)

    @property
    def num_clients(self) -> int:
        """The number of clients."""
        return len(self.partition)

    @property
    def rows(self) -> int:
        """The number of rows that clients train on."""
        return len(self.partition.indices)

    @property
    def inputs(self) -> int:
        """The numbers in one row without its target, of all tensors together."""
        return sum(part[0].numel() for part in tree_leaves(self.divided(self.train)[0]))

    def divided(self, rows: Rows) -> tuple[Rows, Tensor]:
        """The inputs and the target of rows or of a batch of them, as a plain module gets them.

        A single input is a tensor, several are a tuple or dictionary. A lone tensor is input and
        target at once.

        Raises:
            UserError: If no target was named and it is not obvious.
        """
        return roles.divided(rows, self.target)

    def __repr__(self) -> str:
        parts = [f"train {self.rows:,} rows"]
        for part, rows in (("test", self.test), ("validation", self.validation)):
            if rows is not None:
                owned = "" if part in self.parts else " without owners"
                parts.append(f"{part} {len(tree_leaves(rows)[0]):,}{owned}")
        sizes = " / ".join(smallest_median_largest(self.partition.sizes))
        clients = f"{self.num_clients:,} clients of {sizes} (min / median / max)"
        return f"FederatedData({', '.join(parts)}; {clients})"

    @classmethod
    def from_table(
        cls,
        table: "TableLike",
        *,
        target: str,
        clients: Any,
        columns: Sequence[str] | None = None,
        test: "TableLike | float | None" = 0.2,
        validation: "TableLike | float | None" = None,
        standardize: bool = True,
        standardize_target: bool = False,
        classes: Sequence[str] | None = None,
        seed: int = 0,
    ) -> "FederatedData":
        """Rows (x, y) of a data frame or a CSV file.

        The inputs x, (n, columns) float32, are columns of numbers. Those of a CSV file are mapped
        from a temporary file in `TMPDIR`, so that they may be larger than the memory.

        Args:
            table: A frame, or the path of a CSV file with a header.
            target: The column of targets. Texts, categories and truth values become classes, y
                int64; numbers stay numbers, y float32.
            clients: The column of owners, or what else `FederatedData` takes.
            columns: The columns of x in their order; None: all but target and owners.
            test: A fraction of each client's rows, or another table with the same columns.
            validation: As `test`.
            standardize: Shift and scale the columns of x so that of the training rows' values the
                mean is 0 and the standard deviation 1.
            standardize_target: The same for a target of numbers. Outputs and losses are of these
                then; metrics stay in the target's own unit.
            classes: The names of the classes in their order. The texts of the target are some of
                them; or the target holds whole numbers, the positions in them.
            seed: The seed of schemes and fractions.

        Raises:
            UserError: If the table cannot be read, or an input is a text, missing or infinite.

        Example::

            data = fl.FederatedData.from_table("flights.csv", target="delay", clients="carrier")
            net = nn.Linear(data.inputs, 1)
        """
        from fl_lightning.data.tables import read_table  # here, because pandas takes time

        owner = clients if isinstance(clients, str) else None
        made = read_table(table, target, owner, classes, columns)

        def read(other: "TableLike", part: str) -> tuple[Tensor, Tensor]:
            held = read_table(other, target, None, made.classes, made.columns)
            return held.x, held.y

        parts = _read_parts(test, validation, read)
        owners = clients if owner is None else made.owners
        data = cls((made.x, made.y), clients=owners, classes=made.classes, seed=seed, **parts)
        trained = data.partition.indices
        used = [p for p in (data.train, data.test, data.validation) if isinstance(p, tuple)]
        if standardize:
            standardize_columns([x for x, _ in used], trained)
        if standardize_target and not made.classes:
            mean, std = standardize_columns([y[:, None] for _, y in used], trained)
            data.unit = mean.item(), std.item()
        return data

    @classmethod
    def from_huggingface(
        cls,
        dataset: Any,
        *,
        clients: Any,
        columns: Sequence[str] | None = None,
        tokens: Any = None,
        length: int | None = None,
        test: Any = None,
        validation: Any = None,
        target: roles.Target = None,
        classes: Sequence[str] | None = None,
        seed: int = 0,
    ) -> "FederatedData":
        """Rows of a Hugging Face data set: a dictionary of its columns in torch format.

        With `tokens` a client's texts become blocks `{"input_ids", "labels"}`, both (n, length)
        int64. The texts follow one another, each with the end-of-text token. The last block is
        padded, with labels -100. Blocks need no attention mask.

        Args:
            dataset: One split, a `datasets.Dataset`.
            clients: The column of owners, or what else `FederatedData` takes.
            columns: The columns of a row; by default all that its format shows, without the owners.
            tokens: A tokenizer of `transformers`; `columns` are texts then.
            length: Tokens in a block.
            test: A fraction of each client's rows or blocks, or another split.
            validation: As `test`.
            target: As in `FederatedData`.
            classes: The names of the classes; by default the names that a `ClassLabel` target has.
            seed: The seed of schemes and fractions.

        Raises:
            UserError: If a column is missing, holds texts without `tokens`, or unequal shapes.
        """
        owner = clients if isinstance(clients, str) else None
        columns = hub_columns(dataset, "dataset", columns, owner)
        read = partial(read_hub, columns=columns, tokens=tokens, length=length)
        owners = clients if owner is None else dataset.with_format(None)[owner][:]
        rows, owners, names = read(dataset, "dataset", clients=owners, seed=seed)
        parts = _read_parts(test, validation, lambda split, part: read(split, part)[0])
        if tokens is None:  # else the target is of tokens
            known = class_names(dataset, {"test": test, "validation": validation}, rows, target)
            classes = known if classes is None else classes
        data = cls(rows, clients=owners, target=target, classes=classes or (), seed=seed, **parts)
        data.names = names or data.names
        return data

    @classmethod
    def from_datamodule(
        cls, datamodule: Any, *, clients: Any = None, **options: Any
    ) -> "FederatedData":
        """The rows behind the loaders of a LightningDataModule.

        Each data set is read once and whole, by its loader's collation. Random transforms are drawn
        once; batch size and order of the loaders are not used. Each stage begins with
        torch's global seed, so that splits without one of their own agree.

        Args:
            datamodule: The data module; `prepare_data` and `setup` are called.
            clients: As in `FederatedData`; by default what the data module's `clients()` returns.
            **options: Of `FederatedData`; `test` and `validation` replace the data module's.

        Raises:
            UserError: If rows have no owners, a data set cannot be read, or a sampler chooses rows.
        """
        return cls(**module_rows(datamodule, clients) | options)


def _read_parts(test: Any, validation: Any, read: Callable[[Any, str], Any]) -> dict[str, Any]:
    """Both parts, as arguments of `FederatedData`: rows that were read, or a fraction or None."""
    parts = {"test": test, "validation": validation}
    return {
        part: given if isinstance(given, float | int | None) else read(given, part)
        for part, given in parts.items()
    }
