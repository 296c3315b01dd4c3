"""How the local learning rate changes over a run."""

from collections.abc import Callable
from dataclasses import dataclass

Schedule = Callable[[int, int], float]
"""`schedule(round, epoch)`: the factor on the local learning rate."""


@dataclass(frozen=True)
class Decay:
    """The local learning rate is multiplied by `rate` every round."""

    rate: float = 1.0

    def __post_init__(self) -> None:
        if self.rate <= 0:
            raise ValueError(f"the learning rate is multiplied by a positive number every round, not by {self.rate}")

    def __call__(self, round: int, epoch: int) -> float:
        """The factor in a round."""
        return self.rate**round
