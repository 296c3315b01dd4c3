"""Aggregation weights: the weight of each client of a cohort in the mean update."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fl_lightning.core.constraints import FiniteFloat, NonNegativeFloat, check
from fl_lightning.errors import UserError


@dataclass(frozen=True)
class Cohort:
    """The facts of a cohort that aggregation weights may depend on.

    Attributes:
        size: Samples of each client of the cohort over the mean of all clients, (M,).
        labels: Their class counts, (M, classes), in the dtype of `size`, float64.
    """

    size: Tensor
    labels: Tensor


Weight = Callable[[Cohort], Tensor]
"""Aggregation weights of a cohort, (M,), up to a common factor.

A rule that is built on other weights is a dataclass with these as its field `base`.
"""


def uniform(cohort: Cohort) -> Tensor:
    """Equal weights."""
    return torch.ones_like(cohort.size)


def by_size(cohort: Cohort) -> Tensor:
    """Numbers of samples (McMahan et al., AISTATS 2017)."""
    return cohort.size


WEIGHTS: dict[str, Weight] = {"uniform": uniform, "by_size": by_size}
"""The weights that `--weighting` names."""


def with_base(weight: Any, base: Weight) -> Weight:
    """`base` in the place of named weights, or of those that a rule is built on.

    A rule of another kind is returned as it is.
    """
    if weight in WEIGHTS.values():
        return base
    return replace(weight, base=base) if hasattr(weight, "base") else weight


def in_words(weight: Weight) -> str:
    """What is said of clients with these weights."""
    if weight in (by_size, uniform):
        return "weighted by their samples" if weight is by_size else "weighted equally"
    return f"weighted by {getattr(weight, '__name__', type(weight).__name__)}"


@dataclass(frozen=True)
class Disco:
    """FedDisco's weights `max(0, p_i - a k_i + b)`, smaller for clients with skewed labels.

    p_i is the client's share of the weights `base`, k_i its share of the cohort's discrepancies
    `KL(labels of i || uniform)`. Where no weight would be positive, the weights are p_i.

    References:
        Ye et al., ICML 2023, https://arxiv.org/abs/2305.19229
    """

    a: NonNegativeFloat = 0.5
    b: FiniteFloat = 0.1
    base: Weight = by_size

    def __post_init__(self) -> None:
        check(self, " of Disco", curves=True)

    def __call__(self, cohort: Cohort) -> Tensor:
        """The weights, (M,), up to a common factor.

        Raises:
            UserError: If the targets are no classes.
        """
        if cohort.labels.shape[1] < 2:
            raise UserError(
                "FedDisco weighs clients by the classes of their samples, but the targets are no "
                "classes: choose another method"
            )
        sizes = self.base(cohort)
        p = sizes / sizes.sum()
        q = cohort.labels.to(p) / cohort.labels.sum(1, keepdim=True)
        discrepancy = torch.xlogy(q, q * q.shape[1]).sum(1)
        total = discrepancy.sum()
        k = discrepancy / total if total > 0 else torch.zeros_like(p)
        weights = (p - self.a * k + self.b).clamp(min=0)
        return weights if weights.sum() > 0 else p
