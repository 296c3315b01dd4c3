"""Aggregation weights: how much each client of a cohort counts in the mean update."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fl_lightning.core.constraints import FiniteFloat, NonNegativeFloat, check


@dataclass(frozen=True)
class Cohort:
    """What aggregation weights may depend on.

    Attributes:
        size: Samples of each client of the cohort over the mean of all clients, (M,).
        labels: Their class counts, (M, classes).
    """

    size: Tensor
    labels: Tensor


Weight = Callable[[Cohort], Tensor]
"""Aggregation weights of a cohort, (M,), up to a common factor."""


def uniform(cohort: Cohort) -> Tensor:
    """Every client of the cohort weighs the same."""
    return torch.ones_like(cohort.size)


def by_size(cohort: Cohort) -> Tensor:
    """A client weighs as much as it has samples (McMahan et al., 2017)."""
    return cohort.size


@dataclass(frozen=True)
class Disco:
    """FedDisco (Ye et al., ICML 2023): `max(0, p_i - a k_i + b)`, fewer for clients with skewed labels.

    p_i is the client's share of the cohort's samples, k_i its share of the cohort's discrepancies
    `KL(labels of i || uniform)`. Where no weight would be positive, the weights are p_i.
    """

    a: NonNegativeFloat = 0.5
    b: FiniteFloat = 0.1

    def __post_init__(self) -> None:
        check(self, " of Disco")

    def __call__(self, cohort: Cohort) -> Tensor:
        """The weights, (M,), up to a common factor."""
        p = cohort.size / cohort.size.sum()
        q = cohort.labels.to(p) / cohort.labels.sum(1, keepdim=True)
        discrepancy = torch.xlogy(q, q * q.shape[1]).sum(1)
        total = discrepancy.sum()
        k = discrepancy / total if total > 0 else torch.zeros_like(p)
        weights = (p - self.a * k + self.b).clamp(min=0)
        return weights if weights.sum() > 0 else p
