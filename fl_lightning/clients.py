"""Clients: who takes part in a round, which rank trains whom, and what each client keeps between rounds."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from fl_lightning.randomness import generator
from fl_lightning.term import States

Participation = Callable[[int, int, int], list[int]]
"""`participation(num_clients, seed, round)`: the cohort of a round, in ascending order."""


def _check_fraction(fraction: float) -> None:
    if not 0 < fraction <= 1:
        raise ValueError(f"participation is the fraction of clients in a round, above 0 and at most 1, not {fraction}")


@dataclass(frozen=True)
class FixedSize:
    """`max(1, round(fraction N))` clients, drawn uniformly without replacement."""

    fraction: float

    def __post_init__(self) -> None:
        _check_fraction(self.fraction)

    def __call__(self, num_clients: int, seed: int, round: int) -> list[int]:
        """The cohort of a round."""
        size = max(1, int(self.fraction * num_clients + 0.5))
        drawn = torch.randperm(num_clients, generator=generator(seed, "cohort", round))[:size]
        return drawn.sort().values.tolist()


@dataclass(frozen=True)
class Bernoulli:
    """Each client takes part with probability `fraction`, as in FedDyn's and FL-Simulator's code; redrawn if empty."""

    fraction: float

    @property
    def expected_share(self) -> float:
        """The share of clients in a round to expect; what has none expects the share that there is."""
        return self.fraction

    def __post_init__(self) -> None:
        _check_fraction(self.fraction)

    def __call__(self, num_clients: int, seed: int, round: int) -> list[int]:
        """The cohort of a round."""
        if self.fraction * num_clients < 0.01:
            raise ValueError(
                f"with participation {self.fraction} of {num_clients} clients nearly every cohort would be empty"
            )
        attempt = 0
        while True:
            drawn = torch.rand(num_clients, generator=generator(seed, "cohort", round, attempt)) < self.fraction
            if drawn.any():
                return drawn.nonzero().flatten().tolist()
            attempt += 1


def share_out(work: Sequence[int], ranks: int) -> list[list[int]]:
    """Spread clients over ranks so that ranks finish together: longest first, each to the least loaded rank.

    Args:
        work: Work of each client of the cohort, e.g. its samples times its epochs.
        ranks: How many ranks there are.

    Returns:
        For each rank the positions in `work` that it trains; possibly none.
    """
    load, shares = [0] * ranks, [[] for _ in range(ranks)]  # type: tuple[list[int], list[list[int]]]
    for i in sorted(range(len(work)), key=lambda i: (-work[i], i)):
        rank = min(range(ranks), key=lambda r: (load[r], r))
        shares[rank].append(i)
        load[rank] += work[i]
    return shares


class ClientStore:
    """What clients keep between rounds: one row a client and state, in sparse memory-mapped files shared by all ranks.

    A client's row begins at its first visit and takes no disk before. A row has several places, and a write goes to the
    first one that no kept checkpoint refers to. So a run killed at any moment, in the middle of a write too, finds the
    rows of every checkpoint as they were: nothing is copied, and nothing has to be undone. On disk a row takes two
    places while one checkpoint is kept, never more than k + 1 with k of them, and fewer where rows have not changed
    in between.

    All ranks call `commit`, `pin` and `unpin` alike; a row is written by the one rank that trains the client.

    Args:
        folder: Where the files lie; made if it does not exist.
        num_clients: Number of rows.
        begin: States as they would begin, one dictionary a term: names, shapes and dtypes of the rows.

    Attributes:
        place: Where each client's row lies now, (num_clients,) int8; -1 if it was never visited.
        pinned: The same as of each kept checkpoint, by its name.
    """

    def __init__(self, folder: Path, num_clients: int, begin: Sequence[States]):
        self.num_clients = num_clients
        self.place = torch.full((num_clients,), -1, dtype=torch.int8)
        self.pinned: dict[str, Tensor] = {}
        self._folder, self._fresh, self._begin = folder, not folder.exists(), begin
        if any(begin):
            folder.mkdir(parents=True, exist_ok=True)
        self._map(places=2)

    def _map(self, places: int) -> None:
        """Map the files with room for so many places; what lies in the first ones stays."""
        self._places, self._rows = places, list[States]()
        for i, states in enumerate(self._begin):
            mapped = {}
            for name, like in states.items():
                count = places * self.num_clients * prod(like.shape)
                _lengthen(self._path(i, name), count * like.element_size())
                rows = torch.from_file(str(self._path(i, name)), shared=True, size=count, dtype=like.dtype)
                mapped[name] = rows.view(places, self.num_clients, *like.shape)
            self._rows.append(mapped)

    def _path(self, term: int, name: str) -> Path:
        return self._folder / f"{term}.{name}.rows"

    def _at(self, place: int, client: int) -> list[States]:
        if place >= self._places:
            self._map(place + 1)
        return [{name: rows[place, client] for name, rows in term.items()} for term in self._rows]

    def has(self, client: int) -> bool:
        """Whether this client has been visited before."""
        return bool(self.place[client] >= 0)

    def read(self, client: int, device: torch.device) -> list[States]:
        """The client's states, one dictionary a term, copied to the device."""
        rows = self._at(int(self.place[client]), client)
        return [{name: row.to(device, copy=True) for name, row in term.items()} for term in rows]

    def write(self, client: int, states: Sequence[States]) -> None:
        """Write the client's row; it counts from the next `commit` on. States that are not kept are passed over."""
        rows = self._at(int(self._free(torch.tensor([client]))), client)
        for term, values in zip(rows, states, strict=True):
            for name, row in term.items():
                row.copy_(values[name].detach())

    def commit(self, clients: Sequence[int]) -> None:
        """Let the rows that were written for these clients count: once a round, on every rank."""
        cohort = torch.tensor(clients, dtype=torch.long)
        self.place[cohort] = self._free(cohort)

    def _free(self, clients: Tensor) -> Tensor:
        """The first place of each client's row that no checkpoint refers to."""
        candidates = torch.arange(len(self.pinned) + 1, dtype=torch.int8)[:, None]
        taken = torch.zeros(len(candidates), len(clients), dtype=torch.bool)
        for place in self.pinned.values():
            taken |= candidates == place[clients]
        return taken.to(torch.int8).argmin(0).to(torch.int8)  # of equal ones the first

    def flush(self) -> None:
        """Put the rows of this machine on disk, before a checkpoint says that they are there."""
        for i, states in enumerate(self._begin):
            for name in states:
                with self._path(i, name).open("rb") as file:
                    os.fsync(file.fileno())

    def pin(self, checkpoint: str = "last") -> None:
        """A checkpoint refers to the rows as they are now, in place of one of the same name: write elsewhere."""
        self.pinned[checkpoint] = self.place.clone()

    def unpin(self, checkpoint: str) -> None:
        """This checkpoint is no more: its rows may be written over."""
        del self.pinned[checkpoint]

    def restore(self, place: Tensor, pinned: Mapping[str, Tensor] | None = None) -> None:
        """Go back to the rows of a checkpoint.

        Args:
            place: `place` as it was.
            pinned: The checkpoints whose rows must stay, this one among them; None if it is the only one.

        Raises:
            ValueError: If the rows are not there.
        """
        if any(self._begin) and self._fresh and bool((place >= 0).any()):
            raise ValueError(
                f"the checkpoint refers to clients' states in {self._folder}, where there were none: resume there"
            )
        self.place = place.to(torch.int8).clone()
        self.pinned = {"last": self.place.clone()} if pinned is None else dict(pinned)


def _lengthen(path: Path, size: int) -> None:
    """Make a sparse file at least so long; `torch.from_file` would do it too, but writes a 0 over the first byte."""
    with path.open("ab") as file:
        if os.fstat(file.fileno()).st_size < size:
            file.truncate(size)
