"""Random combinations of methods, parts and options; all ways of training one must agree.

    OMP_NUM_THREADS=1 python benchmarks/combinations.py --count 200
    OMP_NUM_THREADS=1 python benchmarks/combinations.py --count 200 --devices 2 --digests

A combination has a method, modifiers, a small network and options, all drawn from its number. It is
trained in float64, one client after another, and then

* stacked, or in branches: the weights are equal to 1e-9;
* in one program with another seed, by `fit_many`: as that seed alone, to 1e-9;
* stopped in its second round and resumed, with clients' states on disk: equal bits.

What is compressed is not compared to 1e-9: among equal numbers rounding chooses. With `--digests`
a digest of each combination's weights is printed instead, trained with deterministic=True, for a
`diff` of the lines of one rank and of several.
"""

import argparse
import contextlib
import io
import os
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import fl_lightning as fl
from fl_lightning.algorithms.modifiers import PARTS
from fl_lightning.algorithms.registry import ALGORITHMS
from fl_lightning.errors import UserError

Weights = dict[str, Tensor]
NEED_MORE = "word"
"""A modifier that has an option without a default."""


class Convolutional(nn.Sequential):
    """A convolution with a normalization, and dropout."""

    def __init__(self, norm: nn.Module):
        pooled = nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()
        head = nn.Dropout(0.2), nn.Linear(64, 5)
        super().__init__(nn.Conv2d(1, 4, 3, padding=1), norm, *pooled, *head)


class Sequences(nn.Module):
    """A Transformer, or a GRU, over the rows of an image."""

    def __init__(self, recurrent: bool):
        super().__init__()
        self.recurrent, self.head = recurrent, nn.Linear(8, 5)
        self.layer = (
            nn.GRU(8, 8, batch_first=True)
            if recurrent
            else nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Scores of images (n, 1, 8, 8)."""
        out = self.layer(x.squeeze(1))
        return self.head((out[0] if self.recurrent else out).mean(1))


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "mlp": lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Tanh(), nn.Linear(8, 5)),
    "batch norm": lambda: Convolutional(nn.BatchNorm2d(4)),
    "group norm": lambda: Convolutional(nn.GroupNorm(2, 4)),
    "transformer": lambda: Sequences(recurrent=False),
    "gru": lambda: Sequences(recurrent=True),
}

CHOICES: dict[str, list[Any]] = {
    "rounds": [3, 4],
    "participation": [0.3, 0.5, 1.0],
    "sampling": ["fixed", "bernoulli", "weighted", "power_of_choice"],
    "weighting": [None, "uniform", "by_size"],
    "server_lr": [None, 0.7, "linear(1, 0.5)"],
    "batch_size": [3, 8, 16],
    "lr": [0.05, "cosine(0.1, 0.01)"],
    "momentum": [0.0, 0.9],
    "weight_decay": [0.0, 0.01],
    "clip_norm": [None, 10.0, 0.5],
    "on_divergence": ["stop", "skip-client", "continue"],
    "evaluate_every": [1, 2],
}

WORK = (
    ("local_steps", 1),
    ("local_steps", 3),
    ("local_steps", "uniform(1, 4)"),
    ("local_epochs", 1.5),
    ("local_epochs", "stragglers(2, 0.5)"),
)


class Combination:
    """The combination of this number."""

    def __init__(self, number: int):
        draw = random.Random(number)
        self.network = draw.choice([*NETWORKS])
        self.algorithm = {"name": draw.choice([*ALGORITHMS])}
        for part, makers in PARTS.items():
            if draw.random() < 0.2:
                self.algorithm[part] = draw.choice([m for m in makers if m != NEED_MORE])
        self.options = {name: draw.choice(values) for name, values in CHOICES.items()}
        steps = draw.choice(WORK)
        self.options |= {"seed": number, steps[0]: steps[1]}
        self.clients, self.stacked = draw.choice([4, 7]), draw.choice([2, 4])
        self.seed = number

    def __repr__(self) -> str:
        return f"{self.seed}: {self.algorithm}, {self.network}, {self.options}"

    def model(self) -> nn.Module:
        """The network with its first weights."""
        torch.manual_seed(self.seed)
        return NETWORKS[self.network]().double()

    def data(self) -> fl.FederatedData:
        """Images of five classes; each client has three at least, so that one can be held out."""
        g, n = torch.Generator().manual_seed(self.seed), 90
        y = torch.randint(5, (n,), generator=g)
        x = torch.randn(n, 1, 8, 8, generator=g, dtype=torch.float64) / 2 + y.view(-1, 1, 1, 1) / 5
        owners = torch.randint(self.clients, (n,), generator=g)
        owners[: 3 * self.clients] = torch.arange(self.clients).repeat(3)
        return fl.FederatedData((x, y), clients=owners, test=0.2)

    def trainer(self, **options: Any) -> fl.FederatedTrainer:
        """A trainer with the options of the combination, and these."""
        options = self.options | options
        return fl.FederatedTrainer(self.algorithm, loss="cross_entropy", **options)

    def fit(self, folder: Path | None, resume: bool = False, **options: Any) -> Weights:
        """Train the network in a run folder, and return its weights and buffers."""
        model = self.model()
        trainer = self.trainer(run_dir=folder, **options)
        trainer.fit(model, self.data(), resume=resume)
        return model.state_dict()


class Interruption:
    """A callback that ends the first of two runs in its second round."""

    def __init__(self) -> None:
        self.waits = True

    def on_round_end(self, federation: fl.Federation, metrics: dict[str, Any]) -> None:
        """Raise an InterruptedError."""
        if federation.round == 2 and self.waits:
            self.waits = False
            raise InterruptedError


def stacked(c: Combination, folder: Path, whole: Weights) -> float:
    """The distance of the weights with stacked clients."""
    options: dict[str, Any] = {"executor": "stacked", "parallel_clients": c.stacked}
    return distance(whole, c.fit(folder / "stacked", **options))


def branches(c: Combination, folder: Path, whole: Weights) -> float:
    """The distance of the weights with clients side by side."""
    options: dict[str, Any] = {"executor": "branches", "parallel_clients": c.stacked}
    return distance(whole, c.fit(folder / "branches", **options))


def together(c: Combination, folder: Path, _: Weights) -> float:
    """The distance of a run in a program of two to the run alone."""
    options: dict[str, Any] = {"executor": "stacked", "parallel_clients": c.stacked}
    seeds = [{"seed": c.seed + k, "run_dir": folder / f"seed{k}"} for k in range(2)]
    run = c.trainer(**options).fit_many(c.model(), c.data(), seeds)[1]
    alone = c.fit(folder / "alone", **options, seed=c.seed + 1)
    return distance(alone, run.model(c.model()).state_dict())


def resumed(c: Combination, folder: Path, whole: Weights) -> float:
    """The distance of a run that was stopped, with clients' states on disk."""
    options: dict[str, Any] = {"callbacks": [Interruption()], "checkpoint_every": "1"}
    options["client_state_memory"] = "1KiB"
    with contextlib.suppress(InterruptedError):
        c.fit(folder / "resumed", **options)
    return distance(whole, c.fit(folder / "resumed", resume=True, **options))


WAYS: dict[Callable[..., float], float] = {
    stacked: 1e-9,
    branches: 1e-9,
    together: 1e-9,
    resumed: 0.0,
}
"""The largest distance of each way."""


def distance(first: Weights, second: Weights) -> float:
    """The largest difference of two numbers, over 1 and the largest number of their tensor."""
    pairs = ((a.double(), second[name].double()) for name, a in first.items())
    return max(((a - b).abs().max() / (1 + a.abs().max())).item() for a, b in pairs)


def compare(c: Combination, results: Counter[str]) -> None:
    """Train in every way, and print where the weights differ."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        whole = c.fit(folder / "whole")
        if not all(t.isfinite().all() for t in whole.values()):
            results["diverged"] += 1
            return
        for way, most in WAYS.items():
            if most and "send" in c.algorithm:
                continue
            d = way(c, folder, whole)
            results[f"equal {way.__name__}" if d <= most else f"other {way.__name__}"] += 1
            if not d <= most:
                print(f"{way.__name__} differs by {d:.1e}: {c}", file=sys.__stdout__)


def digest(c: Combination, devices: int) -> str:
    """Of the weights, trained on so many ranks, with the run in runs/."""
    weights = c.fit(None, devices=devices, accelerator="cpu", deterministic=True)
    return sha256(b"".join(t.numpy().tobytes() for t in weights.values())).hexdigest()[:16]


def main() -> None:
    """Train the combinations."""
    parser = argparse.ArgumentParser(description="Random combinations, trained in several ways.")
    parser.add_argument("--first", type=int, default=0, help="number of the first combination")
    parser.add_argument("--count", type=int, default=100, help="how many")
    parser.add_argument("--digests", action="store_true", help="print digests of weights")
    parser.add_argument("--devices", type=int, default=1, help="ranks, with --digests")
    arguments = parser.parse_args()
    results, unread = Counter[str](), io.StringIO()
    for number in range(arguments.first, arguments.first + arguments.count):
        c, said = Combination(number), ""
        try:
            with contextlib.redirect_stdout(unread), contextlib.redirect_stderr(unread):
                if arguments.digests:
                    said = digest(c, arguments.devices)
                else:
                    compare(c, results)
        except UserError as error:
            said = str(error).splitlines()[0]
            results["refused"] += 1
        if arguments.digests and os.environ.get("LOCAL_RANK", "0") == "0":
            print(number, said)
    if not arguments.digests:
        print(", ".join(f"{name} {count}" for name, count in sorted(results.items())))


if __name__ == "__main__":
    main()
