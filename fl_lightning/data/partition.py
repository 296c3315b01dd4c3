"""The samples of each client: two compact arrays, a digest, and a file."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from fl_lightning.errors import UserError
from fl_lightning.files import atomic

SHOWN = 10
"""Clients that a description shows."""


@dataclass(frozen=True, eq=False)
class Partition:
    """The samples of every client, client after client; a million clients are two arrays.

    A sample may appear more than once (schemes with reuse) or never; a client may be empty.

    Args:
        indices: (total,) int64, the positions in the data set held by client 0, then by client 1,
            and so on.
        offsets: (num_clients + 1,) int64; client i holds `indices[offsets[i]:offsets[i + 1]]`.

    Raises:
        UserError: If the arrays do not describe a partition.
    """

    indices: Tensor
    offsets: Tensor

    def __post_init__(self) -> None:
        ends = self.offsets[[0, -1]].tolist() if len(self.offsets) > 1 else None
        if ends != [0, len(self.indices)] or bool((self.offsets.diff() < 0).any()):
            raise UserError(
                f"offsets must rise from 0 to the number of indices, {len(self.indices)}, "
                "with one more entry than clients"
            )
        if len(self.indices) and self.indices.min() < 0:
            raise UserError("indices holds a negative position: positions start at 0")

    @classmethod
    def from_owners(
        cls, owners: Tensor, clients: int, samples: Tensor | None = None
    ) -> "Partition":
        """The partition in which `owners[k]` holds `samples[k]`, by default sample k; sorted."""
        if samples is not None:
            samples, order = samples.sort(stable=True)
            owners = owners[order]
        narrow = torch.int16 if clients <= 2**15 else torch.int32  # is sorted in half the time
        order = owners.to(narrow).argsort(stable=True)
        sizes = owners.bincount(minlength=clients)
        return cls(order if samples is None else samples[order], pad(sizes.cumsum(0), (1, 0)))

    @classmethod
    def from_lists(cls, lists: Iterable[Iterable[int]]) -> "Partition":
        """The partition with one list of positions per client, such as `[[0, 2], [1]]`."""
        parts = [part if isinstance(part, Tensor) else torch.tensor(list(part)) for part in lists]
        for client, part in enumerate(parts):
            if len(part) and (
                part.ndim > 1 or part.is_floating_point() or part.dtype == torch.bool
            ):
                raise UserError(
                    f"client {client} has positions of shape {tuple(part.shape)}, {part.dtype}: "
                    "give a list of whole numbers, as numpy.flatnonzero(mask) makes of a mask"
                )
        sizes = torch.tensor([0, *map(len, parts)])
        positions = [sizes.new_zeros(0), *(part.long() for part in parts)]
        return cls(torch.cat(positions), sizes.cumsum(0))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, client: int) -> Tensor:
        if not 0 <= client < len(self):
            raise IndexError(f"client {client} does not exist: clients are 0 to {len(self) - 1}")
        start, stop = self.offsets[client : client + 2].tolist()
        return self.indices[start:stop]

    @property
    def sizes(self) -> Tensor:
        """(num_clients,) int64: the number of samples of each client."""
        return self.offsets.diff()

    @property
    def holders(self) -> Tensor:
        """(total,) int64: the client that holds each of `indices`."""
        return torch.arange(len(self)).repeat_interleave(self.sizes)

    @property
    def end(self) -> int:
        """One more than the highest position that a client holds; 0 if none holds any."""
        return int(self.indices.max()) + 1 if len(self.indices) else 0

    def check_none_is_empty(self, things: str, fix: str) -> None:
        """Raise a UserError, which ends with the fix, if a client holds none of these things."""
        if empty := (self.sizes == 0).nonzero().flatten().tolist():
            some = ", ".join(map(str, empty[:5])) + (", ..." if len(empty) > 5 else "")
            raise UserError(
                f"{len(empty)} of {len(self)} clients hold no {things} (client {some}): {fix}"
            )

    def owners(self) -> Tensor:
        """(n,) int64: the client of each sample up to the last held one; 0 if no client has it."""
        owner = torch.zeros(self.end, dtype=torch.int64)
        owner[self.indices] = self.holders
        return owner

    def subset(self, clients: Tensor) -> "Partition":
        """The partition of these clients, (m,) int64, at the cost of these alone."""
        sizes = self.offsets[clients + 1] - self.offsets[clients]
        offsets = pad(sizes.cumsum(0), (1, 0))
        shift = (self.offsets[clients] - offsets[:-1]).repeat_interleave(sizes)
        return Partition(self.indices[torch.arange(len(shift)) + shift], offsets)

    def where(self, kept: Tensor) -> "Partition":
        """The partition without some samples; `kept`, (total,) bool, has the order of `indices`."""
        ends = pad(kept.cumsum(0), (1, 0))
        return Partition(self.indices[kept], ends[self.offsets])

    def histogram(self, y: Tensor, num_classes: int) -> Tensor:
        """(num_clients, num_classes) int64: samples of each class held by each client."""
        cells = self._cells(y, num_classes)
        return cells.bincount(minlength=len(self) * num_classes).view(len(self), num_classes)

    def _cells(self, y: Tensor, num_classes: int) -> Tensor:
        """(total,) the cell of the histogram in which each sample is counted."""
        return self.holders * num_classes + y.cpu()[self.indices]

    def describe(self, y: Tensor, classes: tuple[str, ...]) -> str:
        """Sizes, classes per client and class counts, as far as they fit 80 columns and few lines.

        `y`, (n,) int64, are the labels of the data set.
        """
        smallest, median, largest = smallest_median_largest(self.sizes)
        heading = (
            f"{len(self):,} clients, {len(self.indices):,} samples; partition {self.digest}\n"
            f"a client has {smallest} to {largest} samples (median {median})"
        )
        if not classes:
            return heading
        held = len(self._cells(y, len(classes)).unique()) / len(self)  # a histogram may be huge
        rows = self.subset(torch.arange(min(len(self), SHOWN))).histogram(y, len(classes)).tolist()
        names = [name[:6] for name in classes]
        width = 1 + max(len(str(cell)) for row in (names, *rows) for cell in row)
        shown = (80 - len("client")) // width
        lines = [f"{heading}; mean number of classes {held:.1f}"]
        for head, cells in (("client", names), *enumerate(rows)):
            lines.append(f"{head:<6}" + "".join(f"{cell:>{width}}" for cell in cells[:shown]))
        rest = {"clients": len(self) - len(rows), "classes": len(names) - shown}
        if more := [f"{number:,} more {what}" for what, number in rest.items() if number > 0]:
            lines.append(f"... and {', '.join(more)}")
        return "\n".join(lines)

    @cached_property
    def digest(self) -> str:
        """16 hexadecimal digits: the beginning of the SHA-256 of both arrays."""
        content = sha256(self.offsets.contiguous().numpy().tobytes())
        content.update(self.indices.contiguous().numpy().tobytes())
        return content.hexdigest()[:16]

    def save(self, folder: Path | str) -> Path:
        """Write `folder/partition-<digest>.npz`, whole or not at all, and return its path."""
        path = Path(folder) / f"partition-{self.digest}.npz"
        digest, indices = np.array(self.digest), self.indices.numpy()
        with atomic(path) as file:
            np.savez(file, indices=indices, offsets=self.offsets.numpy(), digest=digest)
        return path

    @classmethod
    def load(cls, path: Path | str) -> "Partition":
        """Read a file that `save` wrote; nothing pickled is executed.

        Raises:
            UserError: If there is no such file, or it is damaged or no partition.
        """
        try:
            with open(path, "rb") as file, np.load(file, allow_pickle=False) as stored:
                indices, offsets = (torch.from_numpy(stored[k]) for k in ("indices", "offsets"))
                digest = str(stored["digest"])
            partition = cls(indices, offsets)
        except Exception as error:  # other files fail in many ways
            raise UserError(f"{path} is missing, damaged or no partition file ({error})") from error
        if digest != partition.digest:
            raise UserError(f"{path} is damaged: its content does not match its digest")
        return partition


def smallest_median_largest(sizes: Tensor) -> list[str]:
    """Of sizes, (clients,), as text."""
    held = sizes.numpy()
    return [f"{n:,.1f}".removesuffix(".0") for n in (held.min(), np.median(held), held.max())]
