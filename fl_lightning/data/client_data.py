"""A data set split over clients, and the mini-batches of one client's visit."""

from bisect import bisect_right
from copy import copy
from functools import cached_property
from hashlib import sha256
from itertools import accumulate
from math import ceil, prod

import torch
from torch import Tensor

from fl_lightning.core.device import to_device_async
from fl_lightning.core.randomness import generator
from fl_lightning.data.augmentation import CropFlip
from fl_lightning.data.dataset import DeviceDataset, channels_last
from fl_lightning.data.partition import Partition

TOGETHER = 32 * 2**20
"""Bytes of inputs that are made together on a GPU, where a small batch takes as long to launch as a large one."""


class Batches:
    """The mini-batches of one visit of one client, gathered and augmented on the data set's device when asked for.

    The index and the random numbers of the whole visit move to the device once, here.

    Args:
        dataset: what the index points into.
        index: (total,) int64, the samples in the order in which they are trained on.
        sizes: how many of them each batch takes, one after the other.
        epochs: for every batch the epoch it belongs to, from 0.
        augment: how images are augmented, with its random numbers for all of `index`; or None.
        together: how many samples are made together, in whole batches, at least one of them.
    """

    def __init__(
        self,
        dataset: DeviceDataset,
        index: Tensor,
        sizes: list[int],
        epochs: list[int],
        augment: tuple[CropFlip, Tensor] | None = None,
        together: int = 1,
    ) -> None:
        self.sizes = sizes
        self.epochs = epochs
        self._dataset, self._together = dataset, together
        self._starts = [0, *accumulate(sizes)]
        self._index = to_device_async(index, dataset.x.device)
        self._augment = augment and augment[0]
        self._draws = augment and to_device_async(augment[1], dataset.x.device)
        self._made: dict[int, tuple[Tensor, Tensor]] = {}

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, k: int) -> tuple[Tensor, Tensor]:
        k = range(len(self))[k]
        if k not in self._made:
            self._made = self._make(k)
        return self._made.pop(k)

    def _make(self, k: int) -> dict[int, tuple[Tensor, Tensor]]:
        """The k-th batch and those after it that are made together."""
        stop = max(k + 1, bisect_right(self._starts, self._starts[k] + self._together) - 1)
        part, sizes = slice(self._starts[k], self._starts[stop]), self.sizes[k:stop]
        index = self._index[part]
        x = self._dataset.inputs(index)
        if self._augment and self._draws is not None:
            x = channels_last(self._augment.apply(x, self._draws[part]))
        batches = zip(x.split(sizes), self._dataset.y[index].split(sizes), strict=True)
        return dict(enumerate(batches, start=k))


class ClientData:
    """A data set split over clients, and how the visit of a client is cut into batches.

    Nothing is kept per client: the order of a visit and its augmentation come from (seed, round, client) alone. The
    last batch of an epoch is short, nothing is dropped. Steps past the end of an epoch go on with the next one.

    Args:
        dataset: the training data, on the device where batches are wanted.
        partition: which client holds which samples.
        batch_size: samples per step.
        epochs: passes over the client's samples in one visit; a fraction is rounded to whole steps, at least one.
        steps: steps per visit, the same for every client, instead of `epochs`.
        augment: augmentation of images; none by default.
        shuffle: a new order for every epoch; otherwise the order of the partition.
        seed: the seed of orders and augmentation.

    Raises:
        ValueError: an empty client, a partition of another data set, or a number out of range.

    Example::

        train, test = digits()
        data = ClientData(train, schemes.dirichlet(train.y, clients=20, seed=0, alpha=0.1), batch_size=32)
        for x, y in data.visit(client=3, round=0):
            ...
    """

    def __init__(
        self,
        dataset: DeviceDataset,
        partition: Partition,
        *,
        batch_size: int = 50,
        epochs: float = 1.0,
        steps: int | None = None,
        augment: CropFlip | None = None,
        shuffle: bool = True,
        seed: int = 0,
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}; a batch needs at least 1 sample.")
        if not 0 < epochs < float("inf"):
            raise ValueError(f"epochs is {epochs}; give a positive number, fractions are allowed.")
        if steps is not None and steps < 1:
            raise ValueError(
                f"steps is {steps}; a visit needs at least 1 step, or leave it None and give epochs."
            )
        _check_partition(dataset, partition)
        if augment and len(dataset.shape) != 3:
            raise ValueError(
                f"augmentation needs images, but a sample has shape {dataset.shape}; leave augment None."
            )
        if augment and augment.mode == "reflect" and augment.padding >= min(dataset.shape[1:]):
            raise ValueError(
                f"images of {dataset.shape[1]}x{dataset.shape[2]} pixels cannot be padded by reflecting "
                f"{augment.padding} of them; give a smaller padding."
            )
        self.dataset = dataset
        self.partition = partition
        self.batch_size = batch_size
        self.epochs = epochs
        self.steps = steps
        self.augment = augment
        self.shuffle = shuffle
        self.seed = seed

    def lasting(self, epochs: float) -> "ClientData":
        """The same clients, with visits of so many epochs."""
        other = copy(self)
        other.epochs, other.steps = epochs, None
        return other

    @property
    def num_clients(self) -> int:
        """How many clients there are."""
        return len(self.partition)

    @cached_property
    def sizes(self) -> Tensor:
        """(num_clients,) float64 on the CPU: how many samples each client holds."""
        return self.partition.sizes.double()

    @cached_property
    def mean_size(self) -> float:
        """How many samples a client holds on average."""
        return self.sizes.mean().item()

    @cached_property
    def _labels(self) -> Tensor:
        return self.dataset.y.cpu()

    def labels_of(self, clients: Tensor) -> Tensor:
        """(m, num_classes) int64 on the CPU: the rows of `class_counts` of these clients, counting no others."""
        return self.partition.subset(clients).histogram(self._labels, len(self.dataset.classes))

    def label_counts(self, client: int) -> Tensor:
        """(num_classes,) int64 on the CPU: the row of `class_counts` of this client, counting no others."""
        return self._labels[self.partition[client]].bincount(minlength=len(self.dataset.classes))

    @cached_property
    def class_counts(self) -> Tensor:
        """(num_clients, num_classes) int64 on the CPU: how many samples of each class each client holds."""
        return self.partition.histogram(self.dataset.y, len(self.dataset.classes))

    @cached_property
    def digest(self) -> str:
        """A name for who holds what: changes with the labels, their order, the normalisation and the partition."""
        held = sha256(self.partition.digest.encode())
        held.update(self.dataset.y.cpu().numpy().tobytes())
        held.update(
            repr(
                (self.dataset.classes, self.dataset.mean, self.dataset.std, self.dataset.shape)
            ).encode()
        )
        return held.hexdigest()[:16]

    def num_steps(self, client: int) -> int:
        """The number of local steps in a visit of this client."""
        if self.steps is not None:
            return self.steps
        return max(1, round(self.epochs * self.steps_per_epoch(client)))

    def steps_per_epoch(self, client: int) -> int:
        """The number of batches in one pass over this client's samples."""
        return ceil(len(self.partition[client]) / self.batch_size)

    def visit(self, client: int, round: int) -> Batches:
        """The batches of this client in this round; equal calls give equal batches, whatever was called before."""
        samples = self.partition[client]
        n, num_steps = len(samples), self.num_steps(client)
        per_epoch = self.steps_per_epoch(client)
        epochs = [k // per_epoch for k in range(num_steps)]
        sizes = [
            min(self.batch_size, n - k % per_epoch * self.batch_size) for k in range(num_steps)
        ]
        if self.shuffle:
            g = generator(self.seed, "order", round, client)
            index = torch.cat(
                [samples[torch.randperm(n, generator=g)] for _ in range(epochs[-1] + 1)]
            )
        else:
            index = samples.repeat(epochs[-1] + 1)
        index = index[: sum(sizes)]
        augment = None
        if self.augment:
            g = generator(self.seed, "augmentation", round, client)
            augment = (self.augment, self.augment.draw(len(index), g))
        sample = prod(self.dataset.shape) * 4  # in float32
        together = (
            TOGETHER // sample if self.dataset.x.is_cuda else 1
        )  # a CPU has them in its cache one by one
        return Batches(self.dataset, index, sizes, epochs, augment, together)


def _check_partition(dataset: DeviceDataset, partition: Partition) -> None:
    if len(partition.indices) and int(partition.indices.max()) >= len(dataset):
        raise ValueError(
            f"the partition points to sample {int(partition.indices.max())}, but the data set has {len(dataset)} "
            "samples; make the partition from this data set's labels."
        )
    empty = (partition.sizes == 0).nonzero().flatten().tolist()
    if empty:
        some = ", ".join(map(str, empty[:5])) + (", ..." if len(empty) > 5 else "")
        raise ValueError(
            f"{len(empty)} of {len(partition)} clients hold no samples (client {some}); "
            "their shares came out too small for one, as unequal shares do (a small alpha, few samples): use fewer "
            "clients or a partition with a minimum size, as --partition.min-size 1."
        )
