"""A regression over clients whose least squares are known."""

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

import fl_lightning as fl

SIZES = 6, 18
"""Of 24 clients in turn: those of equal size train in parallel."""

SCHEDULE: dict[str, Any] = {"rounds": 50, "participation": 1.0, "local_steps": 3}
STEPS: dict[str, Any] = {"batch_size": max(SIZES), "lr": 0.1, "loss": "mse"}
MACHINE: dict[str, Any] = {"executor": "stacked", "parallel_clients": 24, "accelerator": "cpu"}
OPTIONS = SCHEDULE | STEPS | MACHINE
"""Steps of all rows of a client."""


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


def optima() -> dict[str, Tensor]:
    """Slope and level of the least squares with equal clients, and of those of all rows."""
    x, y, owners = rows()
    design = torch.cat([x, torch.ones_like(x)], 1)
    weights = {"clients": 1 / owners.bincount()[owners].double(), "rows": torch.ones_like(y)}
    return {
        of: torch.linalg.solve(design.T @ (w[:, None] * design), design.T @ (w * y))
        for of, w in weights.items()
    }


def distances(algorithm: Any, **options: Any) -> dict[str, float]:
    """The largest difference of the fitted line to each of the optima."""
    x, y, owners = rows()
    torch.manual_seed(0)
    module = nn.Linear(1, 1).double()
    fl.FederatedTrainer(algorithm, **OPTIONS | options).fit(
        module, fl.FederatedData((x, y), clients=owners)
    )
    line = torch.cat([p.detach().flatten() for p in module.parameters()])
    return {of: (line - optimum).abs().max().item() for of, optimum in optima().items()}
