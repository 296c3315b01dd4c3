"""Measures: callbacks that add scalars to some rounds and do not change the training."""

import csv
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fl_lightning.analysis.mean_loss import MeanLoss, some_samples
from fl_lightning.core.constraints import PositiveInt, check
from fl_lightning.data import DeviceDataset
from fl_lightning.executors import Outcome
from fl_lightning.federation.federation import Federation, Metrics
from fl_lightning.federation.server import copy_of, load_model
from fl_lightning.files import atomic


@dataclass(eq=False)
class Measure:
    """Adds scalars to every `every`-th round and the last one. All ranks take part.

    Subclasses override `measure`, and the other hooks of a callback where they need them.

    Args:
        every: Measure after every `every`-th round.
    """

    every: PositiveInt = 10

    def __post_init__(self) -> None:
        check(self, f" of {type(self).__name__}")

    def measure(self, federation: Federation) -> Metrics:
        """The scalars of the round that has ended, by tag."""
        raise NotImplementedError

    def is_due(self, federation: Federation, round: int) -> bool:
        """Whether a round, from 1, is measured."""
        return round % self.every == 0 or round == federation.rounds

    def on_round_end(self, federation: Federation, metrics: Metrics) -> None:
        """Measure, and add to `metrics`."""
        if self.is_due(federation, federation.round):
            metrics.update(self.measure(federation))

    def on_last_round_end(self, federation: Federation, metrics: Metrics) -> None:
        """Measure the last round of a run that ends early."""
        if not self.is_due(federation, federation.round):
            metrics.update(self.measure(federation))


def training_samples(federation: Federation, samples: int | None = None) -> Tensor:
    """Positions of the clients' samples, or of random ones of them; (n,) on the data's device."""
    used = federation.clients.partition.indices.sort().values
    return used[some_samples(len(used), samples)].to(federation.clients.dataset.y.device)


def share_of(federation: Federation, index: Tensor) -> Tensor:
    """This rank's part of an index."""
    return index[federation.fabric.global_rank :: federation.fabric.world_size]


class TrainingLoss:
    """The global loss L(w): the mean over the clients' samples, without augmentation.

    The ranks share the samples, so all of them call it. The model is evaluated with the global
    buffers, in its own dtype. `samples` is a number of random ones; None is all.
    """

    def __init__(self, federation: Federation, samples: int | None = None):
        self.federation = federation
        whole = training_samples(federation, samples)
        module, data = federation.load_global(), federation.clients.dataset
        self._mean = MeanLoss(module, data, loss=federation.loss)
        self._mean.index = share_of(federation, whole)
        self._share = len(self._mean.index) / len(whole)

    def __call__(self, w: Tensor) -> float:
        """The loss at `w`."""
        total = torch.zeros(1, dtype=torch.float64, device=w.device)
        if self._share:
            total += self._share * self._mean(w)
        self.federation.all_reduce_sum(total)
        return total.item()

    def gradient(self, w: Tensor) -> Tensor:
        """The gradient at `w`, a vector like `w`."""
        total = self._share * self._mean.gradient(w) if self._share else torch.zeros_like(w)
        self.federation.all_reduce_sum(total)
        return total


@torch.inference_mode()
def score(
    federation: Federation,
    module: nn.Module,
    data: DeviceDataset,
    index: Tensor,
    batch_size: int = 100,
) -> tuple[Tensor, Tensor]:
    """Score a model in evaluation mode on the samples of an index, on this rank alone.

    Returns:
        Whether the model is right about each sample, (n,), and the sum of their losses, 0-dim.
    """
    right = [index.new_zeros(0, dtype=torch.bool)]
    total = torch.zeros((), dtype=torch.float64, device=index.device)
    with federation.fabric.autocast():
        for batch in index.split(batch_size) if len(index) else ():
            out, y = module(data.inputs(batch)).float(), data.y[batch]
            right.append((out.argmax(1) == y) & ~out.isnan().any(1))  # argmax takes NaN for a class
            total += federation.loss(out, y).double() * len(y)
    return torch.cat(right), total


def score_together(
    federation: Federation,
    module: nn.Module,
    data: DeviceDataset,
    index: Tensor | None = None,
    batch_size: int = 100,
) -> tuple[float, float]:
    """Accuracy and mean loss of a model that all ranks hold, equal bits on any number of ranks.

    The ranks share the batches, and each batch has its own row in the sum over ranks. `index` are
    the samples that count (default: all).
    """
    fabric = federation.fabric
    index = some_samples(len(data), None).to(data.x.device) if index is None else index
    batches = index.split(batch_size)
    rows = torch.zeros(len(batches), 2, dtype=torch.float64, device=data.x.device)
    for k in range(fabric.global_rank, len(batches), fabric.world_size):
        right, total = score(federation, module, data, batches[k], batch_size)
        rows[k] = torch.stack([right.sum().double(), total])
    federation.all_reduce_sum(rows)
    accuracy, mean_loss = (rows.sum(0) / len(index)).tolist()
    return accuracy, mean_loss


class ClientScorer:
    """Scores clients' models on a copy of the module, which leaves the training alone."""

    def __init__(self, federation: Federation):
        self.federation, self.module = federation, copy_of(federation.module)

    def __call__(self, outcome: Outcome, data: DeviceDataset, index: Tensor) -> tuple[float, float]:
        """Accuracy and mean loss of a client's last model with its own buffers."""
        w = outcome.origin + outcome.progress
        load_model(self.module, self.federation.layout, w, outcome.buffers)
        right, total = score(self.federation, self.module, data, index)
        return right.double().mean().item(), (total / len(index)).item()


def write_csv(path: Path, rows: Iterable[Iterable[Any]]) -> None:
    """Write a table, whole or not at all."""
    with atomic(path, "w") as file:
        csv.writer(file).writerows(rows)
