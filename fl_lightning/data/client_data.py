"""A data set split over clients, and the mini-batches of one client's visit."""

from bisect import bisect_right
from collections.abc import Iterable
from copy import copy
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from hashlib import sha256
from itertools import accumulate
from math import ceil, prod
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from fl_lightning.core.constraints import PositiveFloat, PositiveInt, check
from fl_lightning.core.device import to_device_async
from fl_lightning.core.draws import Draw
from fl_lightning.core.randomness import generator
from fl_lightning.data.augmentation import CropFlip
from fl_lightning.data.dataset import DeviceDataset, channels_last
from fl_lightning.data.partition import Partition
from fl_lightning.errors import UserError

CPU_BLOCK, GPU_BLOCK = 2**18, 2**25
"""Bytes of inputs made together.

On a CPU they stay in the cache until they are used; a GPU takes as long for small batches as for
large ones.
"""


class Batches:
    """The mini-batches of one visit, gathered and augmented on the data set's device on access.

    The index and the random numbers of the whole visit move to the device in the constructor.

    Args:
        dataset: The samples.
        index: (total,) int64, the positions of the samples in the order of training.
        sizes: The size of each batch.
        augment: The augmentation with its random numbers for all of `index`, or None.
        together: Most samples that are gathered at once, in whole batches, at least one.
    """

    def __init__(
        self,
        dataset: DeviceDataset,
        index: Tensor,
        sizes: list[int],
        augment: tuple[CropFlip, Tensor] | None = None,
        together: int = 1,
    ) -> None:
        self.sizes = sizes
        self._dataset, self._together = dataset, together
        self._starts = [0, *accumulate(sizes)]
        self._index = to_device_async(index, dataset.first.device)
        self._augment = augment and augment[0]
        self._draws = augment and to_device_async(augment[1], dataset.device)
        self._made: dict[int, tuple[Any, Any]] = {}

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, k: int) -> tuple[Any, Any]:
        k = range(len(self))[k]
        if k not in self._made:
            self._made = self._make(k)
        return self._made.pop(k)

    def _make(self, k: int) -> dict[int, tuple[Any, Any]]:
        """Make the k-th batch and those after it that are made together."""
        stop = max(k + 1, bisect_right(self._starts, self._starts[k] + self._together) - 1)
        part, sizes = slice(self._starts[k], self._starts[stop]), self.sizes[k:stop]
        index = self._index[part]
        x, y = self._dataset.inputs(index), self._dataset.targets(index)
        if self._augment and self._draws is not None:
            (first, *rest), structure = tree_flatten(x)
            images = self._augment.apply(first, self._draws[part], self._dataset.black)
            x = tree_unflatten([channels_last(images), *rest], structure)
        batches = zip(_split(x, sizes), _split(y, sizes), strict=True)
        return dict(enumerate(batches, start=k))


def _split(tree: Any, sizes: list[int]) -> Iterable[Any]:
    """Batches of these sizes, each in the structure of the whole."""
    if isinstance(tree, Tensor):
        return tree.split(sizes)
    leaves, structure = tree_flatten(tree)
    batches = zip(*(t.split(sizes) for t in leaves), strict=True)
    return (tree_unflatten(batch, structure) for batch in batches)


@dataclass(eq=False)
class ClientData:
    """A data set split over clients, and the batches of each client's visits.

    Order and augmentation of a visit depend on (seed, round, client) alone; nothing is kept per
    client. The last batch of an epoch may be short; nothing is dropped but by `single_batches`.

    Args:
        dataset: The training data, on the device of the batches.
        partition: The samples of each client.
        batch_size: Samples per step.
        epochs: Passes over the client's samples per visit, or a `Draw` of them. A fraction is
            rounded to whole steps, at least one.
        steps: Steps per visit, the same for every client, or a `Draw` of them, instead of `epochs`.
        augment: Augmentation of images; none by default.
        shuffle: A new order for every epoch; otherwise the order of the partition.
        seed: The seed of orders and augmentation.
        single_batches: Train on a last batch of one sample. BatchNorm cannot: False leaves the last
            sample of such an epoch out.

    Raises:
        UserError: If a client is empty, the partition is of another data set, or a number is out
            of range.

    Example::

        train, test = digits()
        partition = schemes.dirichlet(train.y, clients=20, seed=0, alpha=0.1)
        data = ClientData(train, partition, batch_size=32)
        for x, y in data.visit(client=3, round=0):
            ...
    """

    dataset: DeviceDataset
    partition: Partition
    _: KW_ONLY
    batch_size: PositiveInt = 50
    epochs: PositiveFloat | Draw = 1.0
    steps: PositiveInt | Draw | None = None
    augment: CropFlip | None = None
    shuffle: bool = True
    seed: int = 0
    single_batches: bool = True

    def __post_init__(self) -> None:
        check(self)
        if (end := self.partition.end) > len(self.dataset):
            raise UserError(
                f"the partition holds sample {end - 1}, but the data set has {len(self.dataset)}: "
                "make the partition from this data set's labels"
            )
        fix = "a small alpha leaves some empty; use fewer clients or --partition.min-size 1"
        self.partition.check_none_is_empty("samples", fix)
        if self.augment:
            self.augment.check_shape(self.dataset.shape)
            first, *others = tree_leaves((self.dataset.x, self.dataset.y))
            if any(t.shape[1:][-2:] == first.shape[2:] for t in others):
                raise UserError(
                    "augmentation moves the first images of a row alone, but others, such as "
                    "masks, have the same height and width: augment in the training step"
                )

    def lasting(self, epochs: float) -> "ClientData":
        """The same clients, with visits of this many epochs."""
        other = copy(self)
        other.epochs, other.steps = epochs, None
        return other

    @property
    def num_clients(self) -> int:
        """The number of clients."""
        return len(self.partition)

    @cached_property
    def sizes(self) -> Tensor:
        """(num_clients,) float64 on the CPU: the number of samples of each client."""
        return self.partition.sizes.double()

    @cached_property
    def _sizes(self) -> Any:
        """The same as an array, whose single numbers take a tenth of the time."""
        return self.sizes.numpy()

    @cached_property
    def mean_size(self) -> float:
        """The mean number of samples of a client."""
        return self.sizes.mean().item()

    def labels_of(self, clients: Tensor) -> Tensor:
        """The rows of `class_counts` of these clients, without counting the others."""
        return self.partition.subset(clients).histogram(
            self.dataset.labels, self.dataset.num_classes
        )

    @cached_property
    def class_counts(self) -> Tensor:
        """(num_clients, num_classes) int64 on the CPU: samples of each class per client."""
        return self.partition.histogram(self.dataset.labels, self.dataset.num_classes)

    @cached_property
    def digest(self) -> str:
        """16 hexadecimal digits: SHA-256 of the digests of the partition and the data set."""
        return sha256(f"{self.partition.digest}{self.dataset.digest}".encode()).hexdigest()[:16]

    def num_steps(self, client: int) -> int:
        """The number of local steps in a visit of this client; if it is drawn, the mean."""
        return self._whole_steps(_mean(self._work), self.steps_per_epoch(client))

    def steps_in(self, client: int, round: int) -> int:
        """The number of local steps in the visit of this client in a round."""
        if not isinstance(self._work, Draw):
            return self.num_steps(client)
        amount = self._work(generator(self.seed, "work", round, client))
        return self._whole_steps(amount, self.steps_per_epoch(client))

    @property
    def mean_steps(self) -> int:
        """The mean number of local steps in a visit of a client of mean size."""
        return self._whole_steps(_mean(self._work), ceil(self.mean_size / self.batch_size))

    @property
    def _work(self) -> float | Draw:
        return self.epochs if self.steps is None else self.steps

    def _whole_steps(self, work: float, steps_per_epoch: int) -> int:
        return max(1, round(work * steps_per_epoch if self.steps is None else work))

    def steps_per_epoch(self, client: int) -> int:
        """The number of batches in one pass over this client's samples."""
        return ceil(self._samples_per_epoch(client) / self.batch_size)

    def _samples_per_epoch(self, client: int) -> int:
        samples = int(self._sizes[client])
        single = samples > 1 and (samples - 1) % self.batch_size == 0
        return samples - (single and not self.single_batches)

    def visit(self, client: int, round: int) -> Batches:
        """The batches of this client in this round; equal calls give equal batches."""
        samples, per_epoch = self.partition[client], self.steps_per_epoch(client)
        n, size, steps = len(samples), self.batch_size, range(self.steps_in(client, round))
        kept = self._samples_per_epoch(client)
        sizes = [min(size, kept - k % per_epoch * size) for k in steps]
        passes = ceil(len(steps) / per_epoch)
        if self.shuffle:
            g = generator(self.seed, "order", round, client)
            orders = [torch.randperm(n, generator=g)[:kept] for _ in range(passes)]
            index = samples[torch.cat(orders)]
        else:
            index = samples[:kept].repeat(passes)
        index = index[: sum(sizes)]
        augment = None
        if self.augment:
            g = generator(self.seed, "augmentation", round, client)
            augment = (self.augment, self.augment.draw(len(index), g))
        block = GPU_BLOCK if self.dataset.device.type == "cuda" else CPU_BLOCK
        together = block // (prod(self.dataset.shape) * 4)  # in float32
        return Batches(self.dataset, index, sizes, augment, together)


def _mean(work: float | Draw) -> float:
    return work.mean if isinstance(work, Draw) else work
