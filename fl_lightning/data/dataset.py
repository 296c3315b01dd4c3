"""A data set as tensors on one device: a batch is an index and, of images, one multiply-add."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from fl_lightning.core.device import bytes_of
from fl_lightning.errors import UserError

DIGESTED = 32 * 2**20
"""Most bytes of samples that a digest reads; of a larger data set, evenly spaced samples."""


@dataclass(frozen=True, eq=False)
class DeviceDataset:
    """Samples and targets on one device.

    Args:
        x: What the model takes: (n, channels, height, width) uint8 images, normalized batch by
            batch, or any other tensor (n, ...) as it is; or a tuple or dictionary of such tensors,
            with which the model is called as `model(*x)` or `model(**x)`.
        y: The targets: (n,) int64 labels, positions in `classes`; or without classes any tensor
            (n, ...), or a tuple or dictionary of them.
        classes: The names of the classes; none if the targets are no classes of samples.
        mean: One per channel, of pixels scaled to [0, 1]; for uint8 images. Empty: no shift.
        std: As `mean`.
        domains: (n,) int64, the domain of each sample, positions in `domain_names`.
        domain_names: The names of the domains.
        batches_on: The device of the batches, if it is another one than that of the samples.
        unit: Origin and size of the unit of `y`: metrics are of origin + size * y.

    Raises:
        UserError: If shapes, types or labels do not fit together.
    """

    x: Any
    y: Any
    classes: tuple[str, ...] = ()
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    domains: Tensor | None = None
    domain_names: tuple[str, ...] = ()
    batches_on: torch.device | None = None
    unit: tuple[float, float] = (0.0, 1.0)

    def __post_init__(self) -> None:
        for name, given in (("x", self.x), ("y", self.y)):
            for t in tree_leaves(given):
                if not isinstance(t, Tensor):
                    raise UserError(f"{name} is or holds a {type(t).__name__}: give tensors")
                if t.layout != torch.strided or t.shape[:1] != (len(self),):
                    raise UserError(
                        f"{name} is {t.dtype} of shape {tuple(t.shape)}, {t.layout}: give a dense "
                        f"tensor with one row for each of {len(self)} samples"
                    )
        channels = {shape[0] for shape in self._image_shapes}
        allowed = {0} | (channels if len(channels) == 1 else set())
        if not {len(self.mean), len(self.std)} <= allowed or min(self.std, default=1) <= 0:
            raise UserError(
                f"mean is {self.mean} and std is {self.std}: give none for features; for uint8 "
                "images none, or one for each channel, std positive"
            )
        if self.classes:
            check_labels("y", self.y, len(self), self.classes)
        if self.domains is not None:
            check_labels("domains", self.domains, len(self), self.domain_names)

    def __len__(self) -> int:
        return len(self.first)

    @cached_property
    def first(self) -> Tensor:
        """The first tensor of `x`."""
        return tree_leaves(self.x)[0]

    @property
    def device(self) -> torch.device:
        """Where the batches are, and the samples unless they do not fit there."""
        return self.batches_on or self.first.device

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample, in the first tensor."""
        return tuple(self.first.shape[1:])

    @cached_property
    def labels(self) -> Tensor:
        """(n,) int64 on the CPU: the class of each sample; 0 for all if there are no classes."""
        return self.y.cpu() if self.classes else torch.zeros(len(self), dtype=torch.int64)

    @property
    def num_classes(self) -> int:
        """Number of the values of `labels`."""
        return max(1, len(self.classes))

    @cached_property
    def digest(self) -> str:
        """16 hexadecimal digits: SHA-256 of labels, normalization and `DIGESTED` of the samples."""
        y, *rest = tree_leaves((self.y, self.x))
        held = sha256(bytes_of(y))
        for part in rest:
            held.update(repr((self.classes, self.mean, self.std, part.dtype, self.shape)).encode())
            step = max(1, -(-part.nbytes // DIGESTED))
            for block in part[::step].split(512):  # a mapped file may be larger than the memory
                held.update(bytes_of(block))
        return held.hexdigest()[:16]

    def _with(self, change: Callable[[Tensor], Tensor]) -> "DeviceDataset":
        """The data set with all its tensors changed."""
        tensors = {"x": self.x, "y": self.y, "domains": self.domains}
        return replace(self, **tree_map(lambda t: None if t is None else change(t), tensors))

    def to(self, device: torch.device | str) -> "DeviceDataset":
        """Copy the data set to another device; if it does not fit there, its batches later."""
        try:
            return self._with(lambda t: t.to(device))
        except torch.OutOfMemoryError:
            size = sum(t.nbytes for t in tree_leaves((self.x, self.y))) / 1e9
            print(
                f"note: {len(self):,} samples ({size:.1f} GB) do not fit the memory of {device}: "
                "they stay in host memory, and each batch is copied"
            )
            return replace(self, batches_on=torch.device(device))

    def subset(self, index: Tensor | slice) -> "DeviceDataset":
        """The samples at `index`, (m,) int64, copied; or in a slice, as a view."""
        return self._with(lambda t: t[index])

    @property
    def _image_shapes(self) -> set[torch.Size]:
        """The shapes of the images in a sample, such as an image and its mask."""
        return {t.shape[1:] for t in tree_leaves(self.x) if is_image(t)}

    @cached_property
    def _scale_and_shift(self) -> dict[torch.Size, list[Tensor]]:
        """Scale and shift of `(pixel / 255 - mean) / std`, in an image's shape: faster on a CPU."""
        std = torch.tensor(self.std or 1.0, dtype=torch.float32).view(-1, 1, 1)
        mean = torch.tensor(self.mean or 0.0, dtype=torch.float32).view(-1, 1, 1)
        pair = 1 / (255 * std), -mean / std
        return {
            shape: [t.expand(shape).contiguous().to(self.device) for t in pair]
            for shape in self._image_shapes
        }

    @property
    def black(self) -> Tensor:
        """(channels, 1, 1) float32: a black pixel after normalization; 0 for features."""
        if not is_image(self.first):
            return torch.zeros(1, 1, 1, device=self.device)
        return self._scale_and_shift[self.first.shape[1:]][1][:, :1, :1]

    def inputs(self, index: Tensor) -> Any:
        """The model's inputs for the samples at `index`, an int64 tensor (b,) on the device.

        Returns:
            (b, channels, height, width) float32, normalized, for images; `x[index]` for any other
            tensor; in the structure of `x`.
        """
        if isinstance(self.x, Tensor):  # in each step
            return self._input(self.x, index)
        return tree_map(lambda t: self._input(t, index), self.x)

    def _input(self, tensor: Tensor, index: Tensor) -> Tensor:
        x = self._taken(tensor, index)
        if is_image(x):
            scale, shift = self._scale_and_shift[x.shape[1:]]
            x = torch.addcmul(shift, x.float(), scale)
        return channels_last(x)

    def _taken(self, tensor: Tensor, index: Tensor) -> Tensor:
        taken = tensor.index_select(0, index.to(tensor.device))
        return taken.to(self.batches_on, non_blocking=True) if self.batches_on else taken

    def targets(self, index: Tensor) -> Any:
        """The targets of the samples at `index`."""
        if isinstance(self.y, Tensor):
            return self._taken(self.y, index)
        return tree_map(lambda t: self._taken(t, index), self.y)

    def batches(self, index: Tensor, size: int) -> Iterator[tuple[Any, Any]]:
        """Inputs and targets of the samples at `index`, at most `size` at a time, in its order."""
        for batch in index.split(size) if len(index) else ():
            yield self.inputs(batch), self.targets(batch)


TrainTest = tuple[DeviceDataset, DeviceDataset]
"""The training and the test part of a data set."""


def is_image(x: Tensor) -> bool:
    """Whether a tensor holds images, which are normalized."""
    return x.dtype == torch.uint8 and x.ndim == 4


def channels_last(x: Tensor) -> Tensor:
    """Images in the memory format that is fast in convolutions; anything else unchanged."""
    return x.contiguous(memory_format=torch.channels_last) if x.ndim == 4 else x


def rows(tree: Any) -> int:
    """The number of samples in a batch, a tensor or several."""
    return len(tree if isinstance(tree, Tensor) else tree_leaves(tree)[0])


def check_labels(name: str, labels: Any, n: int, names: tuple[str, ...]) -> None:
    """Raise a UserError unless labels, (n,) int64, are positions in distinct names."""
    if not isinstance(labels, Tensor) or labels.shape != (n,) or labels.dtype != torch.int64:
        kind, shape = getattr(labels, "dtype", type(labels)), getattr(labels, "shape", ())
        raise UserError(
            f"{name} is {kind} of shape {tuple(shape)}: give one int64 label for each of {n} "
            "samples"
        )
    if not all(isinstance(name, str) for name in names or (None,)) or len({*names}) < len(names):
        raise UserError(f"the names of {name} are {names!r}: give distinct texts")
    if n and not (labels.min() >= 0 and labels.max() < len(names)):
        raise UserError(
            f"{name} goes from {int(labels.min())} to {int(labels.max())}, but there are "
            f"{len(names)} names for it: labels must lie in 0..{len(names) - 1}"
        )


def pixel_moments(x: Tensor) -> Tensor:
    """(2, channels) float64, mean and mean square of the pixels of uint8 images, in [0, 1]."""
    total = torch.zeros(2, x.shape[1], dtype=torch.float64)
    for block in torch.split(x, 512):  # a mapped file may be larger than the memory
        pixels = block.float() / 255
        total[0] += pixels.mean((2, 3)).sum(0)
        total[1] += pixels.square().mean((2, 3)).sum(0)
    return total / max(1, len(x))


def mean_and_std(moments: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """`DeviceDataset.mean` and `DeviceDataset.std` from the result of `pixel_moments`."""
    mean, square = moments
    # a constant channel has no spread: the floor of a tenth of a gray level keeps it finite
    std = (square - mean.square()).clamp(min=0).sqrt().clamp(min=0.1 / 255)
    return tuple(mean.tolist()), tuple(std.tolist())
