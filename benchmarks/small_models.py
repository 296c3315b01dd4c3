"""Small models on a CPU: ten clients stacked beside one after another.

    OMP_NUM_THREADS=1 python benchmarks/small_models.py

CPU time of a local step of one client, its share of the visit (ten steps) and of the server's step
included: the fastest of five rounds of ten clients. The models are made, the samples random.
"""

import time
from collections.abc import Callable
from contextlib import redirect_stdout
from io import StringIO
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn

from fl_lightning import FederatedData, FederatedTrainer, partitions

STEPS, CLIENTS, BATCH = 10, 10, 20


class GRU(nn.Module):
    """One layer over rows of eight numbers."""

    def __init__(self, hidden: int):
        super().__init__()
        self.layer, self.head = nn.GRU(8, hidden, batch_first=True), nn.Linear(hidden, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Scores, (n, 10)."""
        scores: Tensor = self.head(self.layer(x.unflatten(1, (-1, 8)))[0][:, -1])
        return scores


def mlp(inputs: int, *hidden: int) -> nn.Module:
    """Linear layers with ReLU between them."""
    layers: list[nn.Module] = []
    for width in hidden:
        layers += [nn.Linear(inputs, width), nn.ReLU()]
        inputs = width
    return nn.Sequential(*layers, nn.Linear(inputs, 10))


def convolutions(channels: int) -> nn.Module:
    """Two layers on images of 16 x 16."""
    first, second = nn.Conv2d(1, channels, 3, 2), nn.Conv2d(channels, channels, 3, 2)
    head = nn.Linear(9 * channels, 10)
    image = nn.Unflatten(1, (1, 16, 16))
    return nn.Sequential(image, first, nn.ReLU(), second, nn.ReLU(), nn.Flatten(), head)


MODELS: dict[str, tuple[int, Callable[[], nn.Module]]] = {
    "linear, 16 inputs": (16, lambda: mlp(16)),
    "MLP 64-32": (64, lambda: mlp(64, 32)),
    "MLP 64-128": (64, lambda: mlp(64, 128)),
    "MLP 256-128": (256, lambda: mlp(256, 128)),
    "MLP 64-200-200": (64, lambda: mlp(64, 200, 200)),
    "two convolutions of 4 channels": (256, lambda: convolutions(4)),
    "two convolutions of 16 channels": (256, lambda: convolutions(16)),
    "GRU 16": (64, lambda: GRU(16)),
}


class CPUTime:
    """CPU seconds of the clients' part of each round, and of the server's step."""

    def __init__(self) -> None:
        self.rounds = list[float]()

    def on_round_start(self, **_: Any) -> None:
        """Begin."""
        self._began = time.process_time()

    def on_round_end(self, **_: Any) -> None:
        """End."""
        self.rounds.append(time.process_time() - self._began)


def microseconds(make: Callable[[], nn.Module], inputs: int, method: str, executor: str) -> float:
    """CPU time of a local step."""
    torch.manual_seed(0)
    rows = torch.randn(2000, inputs), torch.randint(10, (2000,))
    data, clock = FederatedData(rows, clients=partitions.iid(clients=CLIENTS)), CPUTime()
    with TemporaryDirectory() as folder, redirect_stdout(StringIO()):
        FederatedTrainer(
            method,
            rounds=6,
            participation=1.0,
            local_steps=STEPS,
            batch_size=BATCH,
            lr=0.01,
            loss="cross_entropy",
            executor=executor,  # ten clients at a time, if stacked
            callbacks=[clock],
            run_dir=f"{folder}/run",
        ).fit(make(), data)
    return min(clock.rounds[1:]) / (CLIENTS * STEPS) * 1e6


def main() -> None:
    """Measure and print."""
    print("| model | parameters | FedAvg: sequential, stacked, ratio | FedTOGA |")
    print("|---|---|---|---|")
    for name, (inputs, make) in MODELS.items():
        cells = []
        for method in ("fedavg", "fedtoga"):
            alone, stacked = (
                microseconds(make, inputs, method, way) for way in ("sequential", "stacked")
            )
            cells.append(f"{alone:.0f}, {stacked:.0f} µs: **{alone / stacked:.1f}**")
        size = sum(p.numel() for p in make().parameters())
        print(f"| {name} | {size:,} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
