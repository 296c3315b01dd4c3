"""Client sampling: the cohort of each round, and the ranks that train it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from inspect import signature
from math import inf
from typing import Any

import torch
from torch import Tensor

from fl_lightning.core.constraints import PositiveFraction, check
from fl_lightning.core.randomness import generator
from fl_lightning.errors import UserError

ClientSampler = Callable[..., list[int]]
"""`sampler(num_clients, seed, round)`: the cohort of a round, in ascending order.

With a parameter `federation` it also gets the `Federation`; all ranks must choose the same clients.
It may have `largest(num_clients)`, a bound on the size of its cohorts; `expected_participation`,
the expected fraction of clients in a round where that differs from the actual one;
`probabilities`, of each client to take part in a round, (num_clients,), where these differ; and
`may_be_empty`, whether a cohort may have no client: then the server stays as it is, unless the
method adds noise.
"""


@dataclass(frozen=True)
class Fraction:
    """Samplers of `max(1, round(fraction N))` clients, or as many on average."""

    fraction: PositiveFraction

    def __post_init__(self) -> None:
        check(self, " of clients")

    def largest(self, num_clients: int) -> int:
        """The size of every cohort."""
        return max(1, int(self.fraction * num_clients + 0.5))


@dataclass(frozen=True)
class UniformSampling(Fraction):
    """`max(1, round(fraction N))` clients, drawn uniformly without replacement."""

    def __call__(self, num_clients: int, seed: int, round: int) -> list[int]:
        """The cohort of a round."""
        size, g = self.largest(num_clients), generator(seed, "cohort", round)
        if num_clients > 100 * max(size, 100):  # a permutation would take longer than training
            return _first_different(lambda: torch.randint(num_clients, (size,), generator=g), size)
        return torch.randperm(num_clients, generator=g)[:size].sort().values.tolist()


@dataclass(frozen=True)
class BernoulliSampling(Fraction):
    """Each client with probability `fraction`, as in FedDyn's and FL-Simulator's code.

    Attributes:
        may_be_empty: Keep an empty cohort, as differential privacy counts on; else it is drawn
            again.
    """

    may_be_empty: bool = False

    @property
    def expected_participation(self) -> float:
        """The expected fraction of clients in a round."""
        return self.fraction

    def largest(self, num_clients: int) -> int:
        """A size that less than one cohort in ten million exceeds (Bernstein's inequality)."""
        mean = self.fraction * num_clients
        return min(num_clients, int(mean + 6 * mean**0.5 + 12))

    def __call__(self, num_clients: int, seed: int, round: int) -> list[int]:
        """The cohort of a round."""
        if self.fraction * num_clients < 0.01:
            raise UserError(
                f"participation {self.fraction} of {num_clients} clients leaves nearly every "
                "cohort empty: raise it"
            )
        drawn, attempt = torch.zeros(num_clients, dtype=torch.bool), 0
        while attempt == 0 or not (drawn.any() or self.may_be_empty):
            g = generator(seed, "cohort", round, attempt)
            drawn, attempt = torch.rand(num_clients, generator=g) < self.fraction, attempt + 1
        return drawn.nonzero().flatten().tolist()


@dataclass(frozen=True, eq=False)
class SizeWeightedSampling(Fraction):
    """`max(1, round(fraction N))` clients, drawn one by one in proportion to their sizes.

    A client takes part with probability `fraction * size / mean size` if that is far below 1, and
    less often otherwise (see `probabilities`). Sampling already counts sizes, so take uniform
    aggregation weights with it. Weights by size would count them twice, and estimate an objective
    with squared sizes.

    Args:
        fraction: Size of the cohort over the number of clients.
        sizes: Samples of each client, (num_clients,), positive.
    """

    sizes: Tensor

    @cached_property
    def probabilities(self) -> Tensor:
        """The probability of each client to take part in a round, (num_clients,).

        `1 - exp(-s size)`, with s such that they add up to the cohort's size. This is off by a few
        percent in cohorts of ten, by less in larger ones.

        References:
            Rosen, Journal of Statistical Planning and Inference, 1997
        """
        expected, sizes = self.largest(len(self.sizes)), self.sizes.double() / self.sizes.max()
        if expected == len(sizes):
            return torch.ones_like(sizes)
        s, step = 0.0, inf
        while step > 1e-12 * s:  # Newton's method, which comes from below
            missed = torch.exp(-s * sizes)
            step = float((expected - (1 - missed).sum()) / missed.dot(sizes))
            s += step
        return 1 - torch.exp(-s * sizes)

    @cached_property
    def _cumulative(self) -> Tensor:
        return self.sizes.double().cumsum(0)

    @cached_property
    def _even(self) -> bool:
        """Whether at least every second draw is a new client."""
        largest = self.sizes.double().topk(self.largest(len(self.sizes))).values.sum()
        return bool(largest <= self._cumulative[-1] / 2)

    def __call__(self, num_clients: int, seed: int, round: int) -> list[int]:
        """The cohort of a round."""
        if num_clients != len(self.sizes):
            raise UserError(
                f"weighted sampling has sizes of {len(self.sizes)} clients, but there are "
                f"{num_clients}: give one size each"
            )
        size, g = self.largest(num_clients), generator(seed, "cohort", round)
        if self._even:
            return _first_different(lambda: self._with_replacement(size, g), size)
        return torch.multinomial(self.sizes.double(), size, generator=g).sort().values.tolist()

    def _with_replacement(self, size: int, g: torch.Generator) -> Tensor:
        keys = torch.rand(size, generator=g, dtype=torch.float64) * self._cumulative[-1]
        return torch.searchsorted(self._cumulative, keys, right=True).clamp(max=len(self.sizes) - 1)


def next_cohort(sampler: ClientSampler, federation: Any) -> list[int]:
    """The cohort of a federation's next round."""
    asks = "federation" in signature(sampler).parameters
    given = {"federation": federation} if asks else {}
    return sampler(federation.clients.num_clients, federation.seed, federation.round, **given)


def largest_cohort(sampler: ClientSampler, num_clients: int) -> int:
    """A bound on the size of a cohort: all clients for a sampler without `largest`."""
    largest: Callable[[int], int] = getattr(sampler, "largest", int)
    return largest(num_clients)


def _first_different(draw: Callable[[], Tensor], size: int) -> list[int]:
    """The first `size` different clients of draws with replacement: as drawn without it."""
    cohort: dict[int, None] = {}
    while len(cohort) < size:
        cohort |= dict.fromkeys(draw().tolist())
    return sorted(list(cohort)[:size])


def assign_groups(
    work: Sequence[int], width: int, ranks: int, whole: bool
) -> list[list[list[int]]]:
    """For each rank its groups of positions in `work`; those of a group train in parallel.

    Args:
        work: Work of each client of the cohort, e.g. its local steps.
        width: The most clients of a group.
        ranks: Number of ranks.
        whole: Group first, then assign whole groups, so that the groups do not depend on the number
            of ranks: the last bits depend on which clients train in parallel.
    """
    if not whole:
        return [_groups(share, width) for share in assign_to_ranks(work, ranks)]
    groups = _groups(assign_to_ranks(work, 1)[0], width)
    totals = [sum(work[k] for k in group) for group in groups]
    return [[groups[i] for i in share] for share in assign_to_ranks(totals, ranks)]


def _groups(positions: Sequence[int], width: int) -> list[list[int]]:
    return [list(positions[i : i + width]) for i in range(0, len(positions), width)]


def assign_to_ranks(work: Sequence[int], ranks: int) -> list[list[int]]:
    """The positions in `work` that each rank trains: longest first, to the least loaded."""
    load, shares = [0] * ranks, [list[int]() for _ in range(ranks)]
    for i in sorted(range(len(work)), key=lambda i: -work[i]):
        rank = load.index(min(load))
        shares[rank].append(i)
        load[rank] += work[i]
    return shares
