"""Scores of models during a run: accuracy, loss and metrics; the ranks share the samples."""

import csv
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from torchmetrics import Metric

from fl_lightning.callbacks.bases import Measure
from fl_lightning.callbacks.metrics import Accuracy, larger_is_better, make_metrics, results, update
from fl_lightning.core.losses import TaskLoss, counted, scores_of
from fl_lightning.core.network import call
from fl_lightning.core.prediction import for_classes, is_right
from fl_lightning.data import DeviceDataset
from fl_lightning.errors import UserError
from fl_lightning.executors import ClientResult
from fl_lightning.federation.federation import Federation, Metrics
from fl_lightning.federation.mean_loss import MeanLoss, counted_samples, some_samples
from fl_lightning.federation.server import copy_of, load_model
from fl_lightning.files import atomic

FORWARD_LIMITS = {"cpu": (500, 2**18), "cuda": (1000, 16 * 2**20)}
"""By device: the most samples of a forward pass that scores, and the most bytes as float32.

Larger batches score no faster on a CPU, as measured. For a GPU it is an estimate: 1,000 images of
32x32 pixels take 12 MB."""

Autocast = Callable[[], AbstractContextManager[Any]]
"""Makes the context of a forward pass, e.g. `fabric.autocast`."""


class Scorer(Protocol):
    """Scores the global model, as a run's task does."""

    def scores(
        self, data: DeviceDataset, part: str, index: Tensor | None, autocast: Autocast
    ) -> Metrics:
        """The scores on some samples, on this rank alone."""
        ...

    def larger_is_better(self, name: str) -> bool:
        """Whether larger values of a score are better."""
        ...


def training_samples(federation: Federation, samples: int | None = None) -> Tensor:
    """Positions of the clients' samples, or of random ones of them; (n,) on the data's device."""
    used = federation.clients.partition.indices.sort().values
    return used[some_samples(len(used), samples)].to(federation.clients.dataset.device)


class TrainingLoss:
    """The global loss L(w): the mean over the clients' samples, without augmentation.

    The ranks share the batches, so all of them call it. The model is evaluated with the global
    buffers, in its own dtype. `samples` is a number of random ones; None is all.
    """

    def __init__(self, federation: Federation, samples: int | None = None):
        self.federation = federation
        module, data = federation.load_global(), federation.clients.dataset
        self._mean = MeanLoss(module, data, loss=federation.loss)
        index = training_samples(federation, samples)
        self._batches = index.split(self._mean.batch_size)
        self._counted = [float(counted(federation.loss, data.targets(b))) for b in self._batches]

    def __call__(self, w: Tensor) -> float:
        """The loss at `w`."""
        of_batches = w.new_zeros(len(self._batches), dtype=torch.float64)
        for k, share in self._own():
            of_batches[k] = share * self._mean(w)
        self.federation.all_reduce_sum(of_batches)
        return sum(of_batches.tolist())

    def gradient(self, w: Tensor) -> Tensor:
        """The gradient at `w`, a vector like `w`."""
        sums = self.federation.local_training.sum_type(w.dtype, len(self._batches))
        limbs = w.new_zeros(sums.limbs, len(w), dtype=sums.dtype)
        for _, share in self._own():
            sums.add(limbs, share * self._mean.gradient(w), 1.0)
        self.federation.all_reduce_sum(limbs)
        return sums.value(limbs).to(w)

    def _own(self) -> Iterator[tuple[int, float]]:
        """This rank's batches, one after another in `_mean`, with their shares of all targets."""
        fabric, whole = self.federation.fabric, sum(self._counted)
        for k in range(fabric.global_rank, len(self._batches), fabric.world_size):
            if self._counted[k]:  # the mean of no target is NaN
                self._mean.index = self._batches[k]
                yield k, self._counted[k] / whole


def forward_batch(data: DeviceDataset, at_least: int) -> int:
    """Samples of a forward pass that scores: hundreds if they are small (see `FORWARD_LIMITS`).

    Outputs for tokens, or for several targets a sample, may be far larger than the inputs: then it
    is `at_least`, as in training, which fits the memory.
    """
    dense = data.first.dtype != torch.int64 and tree_leaves(data.y)[0][:1].numel() == 1
    most, size = FORWARD_LIMITS.get(data.device.type, (0, 0)) if dense else (0, 0)
    return max(at_least, min(most, size // (4 * prod(data.shape))))


@torch.inference_mode()
def score(
    module: nn.Module,
    data: DeviceDataset,
    index: Tensor,
    loss: TaskLoss,
    autocast: Autocast,
    batch_size: int = 100,
    metrics: Iterable[Metric] = (),
) -> tuple[Tensor, Tensor, Tensor]:
    """Score a model in evaluation mode on the samples of an index, on this rank alone.

    The metrics see each batch, which has `batch_size` samples, or more if they are small.

    Returns:
        Whether the model is right about each of `counted_samples`, (n,), of a data set with
        classes, else (0,); the sum of their losses, 0-dim; and how many that sum counts (see
        `counted`).
    """
    index = counted_samples(loss, data, index)
    right = [index.new_zeros(0, dtype=torch.bool)]
    total, seen = torch.zeros(2, dtype=torch.float64, device=index.device)
    with autocast():
        for x, y in data.batches(index, forward_batch(data, batch_size)):
            out = call(module, x)
            if isinstance(out, Tensor) and out.dtype.itemsize < 4:
                out = out.float()
            scores = scores_of(out)
            if data.classes:
                right.append(is_right(*for_classes(loss, scores, y)))
            update(metrics, *in_own_unit(data, scores, y), loss)
            value, weight = loss(out, y).double(), counted(loss, y)
            if isinstance(weight, Tensor):  # the mean of no target is NaN
                value = torch.where(weight > 0, value, 0)
            total, seen = total + value * weight, seen + weight
    return torch.cat(right), total, seen


def in_own_unit(data: DeviceDataset, scores: Any, y: Any) -> tuple[Any, Any]:
    """Outputs and targets in the unit that the targets had before they were standardized."""
    origin, size = data.unit
    return (scores, y) if data.unit == (0, 1) else (origin + size * scores, origin + size * y)


def score_together(
    federation: Federation,
    module: nn.Module,
    data: DeviceDataset,
    index: Tensor | None = None,
    batch_size: int = 100,
    metrics: Mapping[str, Metric] = MappingProxyType({}),
) -> Metrics:
    """Score a model that all ranks hold: `accuracy` if there are classes, `loss`, and metrics.

    The scores are equal to the last bit on any number of ranks. The ranks share the batches, each
    of which has its own row in the sum over ranks. With metrics every rank scores all batches,
    since their states cannot be summed exactly. `index` are the samples that count (default: all).
    """
    fabric = federation.fabric
    index = some_samples(len(data), None).to(data.device) if index is None else index
    index = counted_samples(federation.loss, data, index)
    batches = index.split(forward_batch(data, batch_size))
    table = torch.zeros(len(batches), 3, dtype=torch.float64, device=data.device)
    mine = range(fabric.global_rank, len(batches), fabric.world_size)
    for k in range(len(batches)) if metrics else mine:
        right, total, seen = score(
            module, data, batches[k], federation.loss, fabric.autocast, batch_size, metrics.values()
        )
        if k in mine:
            table[k] = torch.stack([right.sum().double(), total, seen])
    federation.all_reduce_sum(table)
    right, total, seen = table.sum(0)
    accuracy, loss = torch.stack([right / len(index), total / seen]).tolist()
    scores = {"accuracy": accuracy} if data.classes else {}
    return scores | {"loss": loss} | results(metrics)


class Evaluation(Measure):
    """Adds `test/accuracy`, `test/loss` and further metrics to some rounds and to the last one.

    The loss is the federation's. There is an accuracy if the data set has classes.

    The scores are identical to the last bit on any number of ranks. Give it to `Checkpoint` as
    well: a resumed run is then scored on the same test set.

    Args:
        test: The test set, on the device.
        batch_size: Samples a forward pass, or more if they are small (see `forward_batch`).
        name: The first part of the scalars' names: "test", or "val" for a validation part.
        metrics: Names of `fl_lightning.callbacks.metrics.METRICS`, or torchmetrics objects by name.

    Attributes:
        directions: By the name of each scalar, whether larger values are better: as the metric
            says, else by its name. The first one is that of the first metric, else the accuracy,
            else the loss.
    """

    def __init__(
        self,
        test: DeviceDataset,
        every: int = 1,
        batch_size: int = 100,
        name: str = "test",
        metrics: Iterable[str] | Mapping[str, Metric] = (),
    ):
        super().__init__(every)
        self.test, self.name, self.batch_size = test, name, batch_size
        made = make_metrics(metrics, len(test.classes), test.device)
        own: dict[str, Metric | None] = {"accuracy": None} if test.classes else {}
        named = {**made, **own, "loss": None}
        self.directions = {f"{name}/{k}": larger_is_better(k, m) for k, m in named.items()}
        # the accuracy of classes is summed exactly over the ranks instead
        summed = Accuracy if test.classes else ()
        self.metrics = {k: metric for k, metric in made.items() if not isinstance(metric, summed)}
        self.scored = 0  # the last round that was

    @property
    def monitor(self) -> str:
        """The scalar by which a model is the best: the first one."""
        return next(iter(self.directions), "train/loss")

    def measure(self, federation: Federation) -> Metrics:
        self.scored = federation.round
        module, size = federation.load_global(), self.batch_size
        scores = score_together(federation, module, self.test, None, size, self.metrics)
        return {f"{self.name}/{name}": value for name, value in scores.items()}

    def on_fit_end(self, federation: Federation) -> None:
        """Score the last round if an interruption has kept it from being scored."""
        if self.scored < federation.round:
            federation.fabric.log_dict(self.measured(federation), step=federation.round)

    def state_dict(self) -> dict[str, Any]:
        """The digest of the test set, and the last round that was scored."""
        return {"test": self.test.digest, "scored": self.scored}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Raise a UserError if the test set has changed since the run began."""
        if state["test"] != self.test.digest:
            raise UserError(
                f"the {self.name} set has changed since the run began: restore it, and seed what "
                "loads it, or start another run"
            )
        self.scored = state["scored"]


class ClientScorer:
    """Scores clients' models on a copy of the module, which leaves the training alone."""

    def __init__(self, federation: Federation):
        self.federation, self.module = federation, copy_of(federation.module)

    def __call__(
        self, result: ClientResult, data: DeviceDataset, index: Tensor
    ) -> tuple[float, float]:
        """Accuracy and mean loss of a client's last model with its own buffers."""
        w = result.origin + result.progress
        load_model(self.module, self.federation.layout, w, result.buffers)
        loss, autocast = self.federation.loss, self.federation.fabric.autocast
        right, total, seen = score(self.module, data, index, loss, autocast)
        return right.double().mean().item(), (total / seen).item()


def write_csv(path: Path, rows: Iterable[Iterable[Any]]) -> None:
    """Write a table, whole or not at all."""
    with atomic(path, "w") as file:
        csv.writer(file).writerows(rows)
