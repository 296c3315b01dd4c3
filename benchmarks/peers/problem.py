"""The problem that every simulator trains on, and the form in which each leaves its weights.

Four clients of 12, 7, 9 and 14 samples; three of them take part in each round. The network has 83
weights in float64. Batches are never shuffled, so nothing is random.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

SIZES = 12, 7, 9, 14
COHORTS = (0, 1, 2), (0, 2, 3), (1, 2, 3), (0, 1, 3)
"""In turn; client 3 comes late."""

INPUTS, HIDDEN, CLASSES = 6, 8, 3
LR = 0.1

COEFFICIENTS: dict[str, dict[str, float]] = {
    "fedavg": {},
    "fedprox": {"mu": 0.5},
    "scaffold": {},
    "scaffold_first": {},
    "fednova": {},
    "fedavgm": {"beta": 0.9},
    "fedadam": {"beta1": 0.9, "beta2": 0.99, "tau": 1e-3},
    "fedyogi": {"beta1": 0.9, "beta2": 0.99, "tau": 1e-3},
    "fedadagrad": {"beta1": 0.0, "tau": 1e-3},
    "feddyn": {"alpha": 0.1},
    "moon": {"mu": 1.0, "tau": 0.5},
    "fedsam": {"rho": 0.05},
    "fedmedian": {},
    "trimmed_mean": {"share": 0.25},
    "krum": {"share": 0.25},
}
ADAPTIVE = "fedadam", "fedyogi", "fedadagrad"
ROBUST = "fedmedian", "trimmed_mean", "krum"


@dataclass(frozen=True)
class Case:
    """One run: a method and what may differ between its runs.

    Attributes:
        method: A key of `COEFFICIENTS`.
        by_size: Clients weigh by their samples, not equally.
        server_lr: The server's learning rate.
        everyone: All four clients take part in each round.
        epochs: Passes over a client's samples.
        batch_size: Samples of a step; 14 are all of a client.
        rounds: How many.
    """

    method: str
    by_size: bool = False
    server_lr: float = 1.0
    everyone: bool = False
    epochs: int = 5
    batch_size: int = max(SIZES)
    rounds: int = 8

    def cohort(self, round: int) -> list[int]:
        """The clients of a round."""
        return [*range(len(SIZES))] if self.everyone else [*COHORTS[round % len(COHORTS)]]

    def coefficients(self) -> dict[str, float]:
        """Those of the method."""
        return COEFFICIENTS[self.method]


UNEQUAL_STEPS: dict[str, int] = {"batch_size": 4, "epochs": 2}
"""6, 4, 6 and 8 steps, for FedNova."""

LONG: dict[str, Any] = {"everyone": True, "epochs": 20, "rounds": 50}
"""What the curves are of."""


def data() -> list[tuple[np.ndarray, np.ndarray]]:
    """Inputs (n, 6) and labels (n,) of each client: some labels are frequent, and all are noisy."""
    g = np.random.default_rng(0)
    clients = []
    for k, n in enumerate(SIZES):
        y = np.where(g.random(n) < 0.6, k % CLASSES, g.integers(CLASSES, size=n))
        clients.append((g.normal(size=(n, INPUTS)) + 0.5 * y[:, None], y))
    return clients


def start() -> np.ndarray:
    """The first weights, (83,): encoder, its bias, head, its bias."""
    d = HIDDEN * (INPUTS + 1) + CLASSES * (HIDDEN + 1)
    return np.random.default_rng(1).normal(size=d) / 2


class Net(nn.Module):
    """An encoder of one tanh layer and a linear head."""

    def __init__(self, weights: np.ndarray | None = None) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(INPUTS, HIDDEN), nn.Tanh())
        self.head = nn.Linear(HIDDEN, CLASSES)
        self.double()
        weights = start() if weights is None else weights
        nn.utils.vector_to_parameters(torch.from_numpy(weights), self.parameters())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scores (n, 3)."""
        return self.head(self.encoder(x))


def weights(module: nn.Module) -> list[float]:
    """Those of a module, as a list."""
    return nn.utils.parameters_to_vector(module.parameters()).tolist()


def tensors() -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The clients' data as tensors."""
    return [(torch.from_numpy(x), torch.from_numpy(y)) for x, y in data()]


def write(path: str, runs: Iterable[tuple[Case, list[list[float]]]]) -> None:
    """Leave the weights after each round of each case."""
    found = [{"case": asdict(case), "path": path} for case, path in runs]
    Path(path).write_text(json.dumps(found))


def read(path: Path) -> dict[Case, np.ndarray]:
    """The weights after each round, (rounds, 83), of each case."""
    return {Case(**run["case"]): np.array(run["path"]) for run in json.loads(path.read_text())}
