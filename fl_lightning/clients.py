"""Clients: who takes part in a round, which rank trains whom, and what each client keeps between rounds."""

from collections.abc import Callable, Sequence
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

    A client's row begins at its first visit and takes no disk before. Each row has two places: a write goes to the one
    that the last checkpoint does not refer to, so a run killed at any moment still finds the rows of its checkpoint.
    All ranks call `commit` and `pin` alike; a row is written by the one rank that trains the client.

    Args:
        folder: Where the files lie; made if it does not exist.
        num_clients: Number of rows.
        begin: States as they would begin, one dictionary a term: names, shapes and dtypes of the rows.
    """

    def __init__(self, folder: Path, num_clients: int, begin: Sequence[States]):
        self.num_clients = num_clients
        self.place = torch.full((num_clients,), -1, dtype=torch.int8)  # -1: never visited
        self._pinned = self.place.clone()
        self._rows: list[States] = []
        self._folder, self._fresh = folder, not folder.exists()
        if any(begin):
            folder.mkdir(parents=True, exist_ok=True)
        for i, states in enumerate(begin):
            self._rows.append({name: self._map(folder / f"{i}.{name}.rows", state) for name, state in states.items()})

    def _map(self, path: Path, like: Tensor) -> Tensor:
        count = 2 * self.num_clients * prod(like.shape)
        rows = torch.from_file(str(path), shared=True, size=count, dtype=like.dtype)
        return rows.view(2, self.num_clients, *like.shape)

    def has(self, client: int) -> bool:
        """Whether this client has been visited before."""
        return bool(self.place[client] >= 0)

    def read(self, client: int, device: torch.device) -> list[States]:
        """The client's states, one dictionary a term, copied to the device."""
        place = int(self.place[client])
        return [{k: rows[place, client].to(device, copy=True) for k, rows in term.items()} for term in self._rows]

    def write(self, client: int, states: Sequence[States]) -> None:
        """Write the client's row; it counts from the next `commit` on. States that are not kept are passed over."""
        place = int(self._target(torch.tensor([client])))
        for term, values in zip(self._rows, states, strict=True):
            for name, rows in term.items():
                rows[place, client].copy_(values[name].detach())

    def commit(self, clients: Sequence[int]) -> None:
        """Let the rows that were written for these clients count: once a round, on every rank."""
        cohort = torch.tensor(clients)
        self.place[cohort] = self._target(cohort)

    def _target(self, clients: Tensor) -> Tensor:
        pinned = self._pinned[clients]
        return torch.where(pinned < 0, 0, 1 - pinned).to(torch.int8)

    def pin(self) -> None:
        """A checkpoint refers to the rows as they are now: from now on write to the other places."""
        self._pinned = self.place.clone()

    def restore(self, place: Tensor) -> None:
        """Go back to the rows of a checkpoint, given its `place`.

        Raises:
            ValueError: If the rows are not there.
        """
        if any(self._rows) and self._fresh and bool((place >= 0).any()):
            raise ValueError(
                f"the checkpoint refers to clients' states in {self._folder}, where there were none: resume there"
            )
        self.place = place.to(torch.int8).clone()
        self.pin()
