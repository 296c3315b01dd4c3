"""A regression over clients whose least squares are known."""

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

import fl_lightning as fl

SIZES = 6, 18
"""Of 24 clients in turn: those of equal size train in parallel."""

SCHEDULE: dict[str, Any] = {"rounds": 36, "participation": 1.0, "local_steps": 3}
STEPS: dict[str, Any] = {"batch_size": max(SIZES), "lr": 0.1, "loss": "mse"}
MACHINE: dict[str, Any] = {"executor": "stacked", "parallel_clients": 24, "accelerator": "cpu"}
OPTIONS = SCHEDULE | STEPS | MACHINE
"""Steps of all rows of a client."""


@dataclass(frozen=True)
class Regression:
    """Inputs (n, p), targets (n,) and owners (n,), in float64; a level is an input of ones."""

    x: Tensor
    y: Tensor
    owners: Tensor

    def optima(self) -> dict[str, Tensor]:
        """The least squares with equal clients, and with equal rows."""
        sizes = self.owners.bincount()[self.owners].double()
        weights = {"clients": 1 / sizes, "rows": torch.ones_like(self.y)}
        return {
            of: torch.linalg.solve(self.x.T @ (w[:, None] * self.x), self.x.T @ (w * self.y))
            for of, w in weights.items()
        }

    def distances(self, algorithm: Any, **options: Any) -> dict[str, float]:
        """The largest difference of what the method fits to each of the optima."""
        torch.manual_seed(0)
        module = nn.Linear(self.x.shape[1], 1, bias=False).double()
        data = fl.FederatedData((self.x, self.y), clients=self.owners)
        fl.FederatedTrainer(algorithm, **OPTIONS | options).fit(module, data)
        fitted = module.weight.detach()[0]
        return {of: (fitted - found).abs().max().item() for of, found in self.optima().items()}


@cache
def rows() -> tuple[Tensor, Tensor, Tensor]:
    """Inputs (n, 1), targets (n,) and owners (n,), in float64.

    Clients have lines of their own, which are steeper where the inputs are wider.
    """
    g = torch.Generator().manual_seed(3)
    owners = torch.arange(24).repeat_interleave(torch.tensor(SIZES * 12))
    width = 0.7 + torch.rand(24, generator=g, dtype=torch.float64)
    x = width[owners] * torch.randn(len(owners), generator=g, dtype=torch.float64)
    slope, level = 4 * width, torch.randn(24, generator=g, dtype=torch.float64)
    return x[:, None], slope[owners] * x + level[owners], owners


def lines() -> Regression:
    x, y, owners = rows()
    return Regression(torch.cat([x, torch.ones_like(x)], 1), y, owners)


def regression(**options: Any) -> fl.FederatedData:
    x, y, owners = rows()
    return fl.FederatedData((x, y), clients=owners, **options)
