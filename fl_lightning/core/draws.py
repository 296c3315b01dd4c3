"""Random amounts of local work: whole numbers drawn for each visit, such as `uniform(2, 5)`."""

from dataclasses import dataclass

import torch

from fl_lightning.core.curves import call_in
from fl_lightning.errors import UserError


@dataclass(frozen=True, repr=False)
class Draw:
    """A random whole number: uniform with probability `share`, otherwise the highest one.

    `uniform` and `stragglers` make one.

    Attributes:
        low: The lowest number.
        high: The highest number.
        share: The probability of a number from `low` to `high`.

    Example:
        >>> parse("stragglers(20,0.5)"), parse("stragglers(20,0.5)").mean
        (stragglers(20, 0.5), 15.25)
    """

    low: float
    high: float
    share: float = 1.0

    def __post_init__(self) -> None:
        if not (1 <= self.low <= self.high and self.low % 1 == self.high % 1 == 0):
            raise UserError(f"{self} is no amount of work: give whole numbers, low to high")
        if not 0 <= self.share <= 1:
            raise UserError(f"{self} is no amount of work: the share is a number from 0 to 1")

    def __call__(self, generator: torch.Generator) -> int:
        """A number from this generator."""
        if torch.rand((), generator=generator) >= self.share:
            return int(self.high)
        return int(torch.randint(int(self.low), int(self.high) + 1, (), generator=generator))

    @property
    def mean(self) -> float:
        """The mean of the numbers."""
        return self.high - self.share * (self.high - self.low) / 2

    def __repr__(self) -> str:
        name = "uniform" if self.share == 1 else "stragglers"
        numbers = (self.low, self.high) if self.share == 1 else (self.high, self.share)
        return f"{name}({', '.join(repr(x).removesuffix('.0') for x in numbers)})"


def uniform(low: float, high: float) -> Draw:
    """A whole number from `low` to `high`, both included, as in the experiments of FedNova.

    Paper: Wang et al., NeurIPS 2020, https://arxiv.org/abs/2007.07481.
    """
    return Draw(low, high)


def stragglers(amount: float, share: float) -> Draw:
    """Stragglers do a uniform part of the work, 1 to `amount`, as in the experiments of FedProx.

    A visit is a straggler's with probability `share`. In the paper stragglers are exactly
    this share of a round's clients (Li et al., MLSys 2020, https://arxiv.org/abs/1812.06127); its
    code draws 1 to `amount - 1` for them.
    """
    return Draw(1, amount, share)


def parse(text: str) -> Draw:
    """The draw that a text such as `uniform(2, 5)` describes.

    Raises:
        UserError: If it describes none.
    """
    return call_in(
        text,
        {make.__name__: make for make in (uniform, stragglers)},
        f"{text!r} is no amount of work: write a number, uniform(2, 5), or stragglers(20, 0.9) "
        "with the full amount and the share of stragglers",
    )
