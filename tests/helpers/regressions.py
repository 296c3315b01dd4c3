"""Linear regressions of three clients, to solve by hand."""

from functools import partial
from typing import Any

import torch
from problems import federation
from torch import Tensor, nn
from torch.optim import SGD

from fl_lightning import Algorithm, ClientData, DeviceDataset, Federation, Partition
from fl_lightning.core.draws import Draw
from fl_lightning.core.vector import Layout

INPUTS = ([[1.0, 0.0], [0.0, 1.0]], [[2.0, 0.0], [0.0, 1.0]], [[1.0, 1.0], [0.0, 2.0]])
TARGETS = ([1, 2], [6, 0], [0, 3])
"""Client i minimizes `1/4 sum_j (x_ij w - y_ij)^2`: three different minima."""


def half_square(out: Tensor, y: Tensor) -> Tensor:
    return 0.5 * (out[:, 0] - y).square().mean()


def line() -> nn.Module:
    module = nn.Linear(2, 1, bias=False).double()
    nn.init.zeros_(module.weight)
    return module


def regression(
    algorithm: Algorithm,
    *,
    steps: int | Draw = 4,
    lr: float = 0.1,
    weight_decay: float = 0.0,
    **options: Any,
) -> Federation:
    """Three clients with two samples each and full-batch steps: only the cohort is random."""
    x = torch.tensor(INPUTS, dtype=torch.float64).reshape(-1, 2)
    y = torch.tensor(TARGETS).flatten()
    parts = Partition.from_lists([[0, 1], [2, 3], [4, 5]])
    clients = ClientData(DeviceDataset(x, y, tuple("0123456")), parts, batch_size=2, steps=steps)
    algorithm = algorithm.with_outer_terms(local=partial(SGD, lr=lr, weight_decay=weight_decay))
    given = {"decays": False, "sampler": two_of_three, "loss": half_square, **options}
    return federation(algorithm, module=line(), clients=clients, **given)


def two_of_three(num_clients: int, seed: int, round: int) -> list[int]:
    return [[0, 1], [1, 2], [0, 2], [2]][round % 4]


def all_three(num_clients: int, seed: int, round: int) -> list[int]:
    return [0, 1, 2]


def mean_gradient(w: Tensor) -> Tensor:
    """The gradient of the mean of the three clients' objectives."""
    x, y = torch.tensor(INPUTS, dtype=w.dtype), torch.tensor(TARGETS, dtype=w.dtype)
    return ((x @ w - y)[..., None] * x).mean((0, 1))


def layout(module: nn.Module | None = None) -> Layout:
    return Layout(module or line())
