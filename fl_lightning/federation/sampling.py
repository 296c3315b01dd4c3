"""Who takes part in a round, and which rank trains whom."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from fl_lightning.core.randomness import generator

Sampling = Literal["fixed", "bernoulli", "weighted"]

ClientSampler = Callable[[int, int, int], list[int]]
"""`participation(num_clients, seed, round)`: the cohort of a round, in ascending order.

It may also tell `largest(num_clients)`, a bound on the size of its cohorts, and `expected_share`,
the share of clients in a round to expect where that is not the share that there is.
"""


@dataclass(frozen=True)
class UniformSampling:
    """`max(1, round(fraction N))` clients, drawn uniformly without replacement."""

    fraction: float

    def __post_init__(self) -> None:
        _check_fraction(self.fraction)

    def largest(self, num_clients: int) -> int:
        """The size of every cohort."""
        return _size(self.fraction, num_clients)

    def __call__(self, num_clients: int, seed: int, round: int) -> list[int]:
        """The cohort of a round."""
        size, g = _size(self.fraction, num_clients), generator(seed, "cohort", round)
        if num_clients > 100 * max(
            size, 100
        ):  # permuting a million clients takes longer than training ten
            return _first_different(lambda: torch.randint(num_clients, (size,), generator=g), size)
        return torch.randperm(num_clients, generator=g)[:size].sort().values.tolist()


@dataclass(frozen=True)
class BernoulliSampling:
    """Each client takes part with probability `fraction`, as in FedDyn's and FL-Simulator's code; redrawn if empty."""

    fraction: float

    @property
    def expected_share(self) -> float:
        """The share of clients in a round to expect."""
        return self.fraction

    def __post_init__(self) -> None:
        _check_fraction(self.fraction)

    def largest(self, num_clients: int) -> int:
        """A size that less than one cohort in ten million exceeds (Bernstein's inequality)."""
        mean = self.fraction * num_clients
        return min(num_clients, int(mean + 6 * mean**0.5 + 12))

    def __call__(self, num_clients: int, seed: int, round: int) -> list[int]:
        """The cohort of a round."""
        if self.fraction * num_clients < 0.01:
            raise ValueError(
                f"with participation {self.fraction} of {num_clients} clients nearly every cohort would be empty"
            )
        attempt = 0
        while True:
            drawn = (
                torch.rand(num_clients, generator=generator(seed, "cohort", round, attempt))
                < self.fraction
            )
            if drawn.any():
                return drawn.nonzero().flatten().tolist()
            attempt += 1


@dataclass(frozen=True, eq=False)
class SizeWeightedSampling:
    """`max(1, round(fraction N))` different clients, drawn one by one with probability proportional to their sizes.

    As long as it is far below 1, the probability that a client takes part is `fraction` times its
    size over the mean size; larger clients fall short of that. Terms see the cohort's share as
    `expected`: the mean over clients, not a client's own. Sampling counts sizes already: with
    aggregation weights by size too they count twice, and the mean of a cohort estimates an
    objective with squared sizes. Take uniform weights with it.

    Args:
        fraction: Size of the cohort over the number of clients.
        sizes: Samples of each client, (num_clients,), positive.
    """

    fraction: float
    sizes: Tensor
    _cumulative: Tensor = field(init=False, repr=False)
    _even: bool = field(init=False, repr=False)

    def __post_init__(self) -> None:
        _check_fraction(self.fraction)
        if self.sizes.ndim != 1 or not bool((self.sizes > 0).all()):
            raise ValueError("weighted sampling needs the clients' sizes, one positive number each")
        cumulative = self.sizes.double().cumsum(0)
        largest = self.sizes.double().topk(_size(self.fraction, len(self.sizes))).values.sum()
        object.__setattr__(self, "_cumulative", cumulative)
        object.__setattr__(self, "_even", bool(largest <= cumulative[-1] / 2))

    def largest(self, num_clients: int) -> int:
        """The size of every cohort."""
        return _size(self.fraction, num_clients)

    def __call__(self, num_clients: int, seed: int, round: int) -> list[int]:
        """The cohort of a round.

        Raises:
            ValueError: If there are sizes of another number of clients.
        """
        if num_clients != len(self.sizes):
            raise ValueError(
                f"weighted sampling has sizes of {len(self.sizes)} clients, but there are {num_clients}"
            )
        size, g = _size(self.fraction, num_clients), generator(seed, "cohort", round)
        if self._even:  # at least every second draw is a new client
            return _first_different(lambda: self._with_replacement(size, g), size)
        return torch.multinomial(self.sizes.double(), size, generator=g).sort().values.tolist()

    def _with_replacement(self, size: int, g: torch.Generator) -> Tensor:
        lot = torch.rand(size, generator=g, dtype=torch.float64) * self._cumulative[-1]
        return torch.searchsorted(self._cumulative, lot, right=True).clamp(max=len(self.sizes) - 1)


def make_sampler(sampling: Sampling, fraction: float, sizes: Tensor) -> ClientSampler:
    """Cohorts of this fraction of the clients, drawn in this way; `sizes` are the clients' samples, (num_clients,)."""
    if sampling == "weighted":
        return SizeWeightedSampling(fraction, sizes)
    return BernoulliSampling(fraction) if sampling == "bernoulli" else UniformSampling(fraction)


def largest_cohort(sampler: ClientSampler, num_clients: int) -> int:
    """A bound on the size of a cohort; what tells none may draw everyone."""
    largest: Callable[[int], int] = getattr(sampler, "largest", int)
    return largest(num_clients)


def _check_fraction(fraction: float) -> None:
    if not 0 < fraction <= 1:
        raise ValueError(
            f"participation is the fraction of clients in a round, above 0 and at most 1, not {fraction}"
        )


def _size(fraction: float, num_clients: int) -> int:
    return max(1, int(fraction * num_clients + 0.5))


def _first_different(draw: Callable[[], Tensor], size: int) -> list[int]:
    """The first so many different clients of draws with replacement: the same law as draws without it."""
    cohort: dict[int, None] = {}
    while len(cohort) < size:
        cohort |= dict.fromkeys(draw().tolist())
    return sorted(list(cohort)[:size])
