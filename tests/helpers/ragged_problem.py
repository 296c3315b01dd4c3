"""The problem of tests/golden with clients of unequal sizes, for programs written by hand."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from problems import cpu
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD

from fl_lightning import Algorithm, ClientData, DeviceDataset, Federation, Partition

_PROBLEM = np.load(Path(__file__).parents[1] / "golden" / "problem.npz")
START: Tensor = torch.from_numpy(_PROBLEM["theta0"])
X, Y = (torch.from_numpy(_PROBLEM[f"ragged_{name}"]) for name in "xy")
SIZES: list[int] = _PROBLEM["ragged_sizes"].tolist()
"""Of ten clients, whose samples are in their order."""
COHORTS: list[list[int]] = _PROBLEM["cohorts"].tolist()
"""Four clients a round."""
BATCH, EPOCHS = 5, 2


def network() -> nn.Module:
    """The perceptron of five classes, in float64, at its start."""
    layers = nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 5)
    module = nn.Sequential(*layers).double()
    nn.utils.vector_to_parameters(START.clone(), module.parameters())  # which are views of it
    return module


def scores(w: Tensor, x: Tensor) -> Tensor:
    """What the network returns at flat weights."""
    A, a, B, b, head, bias = w.split([16 * 12, 16, 16 * 16, 16, 5 * 16, 5])
    z = torch.tanh(torch.tanh(x @ A.view(16, 12).T + a) @ B.view(16, 16).T + b)
    return z @ head.view(5, 16).T + bias


def loss(w: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Its cross entropy there."""
    return F.cross_entropy(scores(w, x), y)


def batches(client: int) -> list[tuple[Tensor, Tensor]]:
    """The batches of a visit: two epochs, in order."""
    x, y = (t.split(SIZES)[client].split(BATCH) for t in (X, Y))
    return [*zip(x, y, strict=True)] * EPOCHS


def ragged_federation(
    algorithm: Algorithm,
    lr: float,
    rounds: int = len(COHORTS),
    steps: int | None = None,
    momentum: float = 0.0,
    **options: Any,
) -> Federation:
    owners = torch.arange(len(SIZES)).repeat_interleave(torch.tensor(SIZES))
    clients = ClientData(
        DeviceDataset(X, Y, classes=tuple("abcde")),
        Partition.from_owners(owners, len(SIZES)),
        batch_size=BATCH,
        epochs=EPOCHS,
        steps=steps,
        shuffle=False,
    )
    method = algorithm.replace(local=partial(SGD, lr=lr, momentum=momentum))
    given = {"rounds": rounds, "sampler": lambda clients, seed, round: COHORTS[round], **options}
    return Federation(cpu(), network(), method, clients, **given)
