"""Schedules of the local learning rate."""

from collections.abc import Callable
from dataclasses import dataclass

from fl_lightning.core.constraints import PositiveFloat, check

Schedule = Callable[[int, int], float]
"""`schedule(round, epoch)`: the factor on the local learning rate."""


@dataclass(frozen=True)
class ExponentialDecay:
    """A local learning rate that is multiplied by `rate` every round."""

    rate: PositiveFloat = 1.0

    def __post_init__(self) -> None:
        check(self, " of ExponentialDecay")

    def __call__(self, round: int, epoch: int) -> float:
        """The factor in a round."""
        return self.rate**round
