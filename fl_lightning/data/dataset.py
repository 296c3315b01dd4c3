"""A data set as tensors on one device: a batch is an index and one multiply-add."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256

import torch
from torch import Tensor

from fl_lightning.errors import UserError

DIGESTED = 32 * 2**20
"""Most bytes of samples that a digest reads; of a larger data set, evenly spaced samples."""


@dataclass(frozen=True, eq=False)
class DeviceDataset:
    """Samples and labels on one device.

    Args:
        x: (n, channels, height, width) uint8 images, normalized batch by batch, or a floating
            tensor (n, ...) of features that are taken as they are.
        y: (n,) int64 labels, positions in `classes`.
        classes: The names of the classes.
        mean: One per channel, of pixels scaled to [0, 1]; for uint8 images. Empty: no shift.
        std: As `mean`.
        domains: (n,) int64, the domain of each sample, positions in `domain_names`.
        domain_names: The names of the domains.

    Raises:
        ValueError: If shapes, types or labels do not fit together.
    """

    x: Tensor
    y: Tensor
    classes: tuple[str, ...]
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    domains: Tensor | None = None
    domain_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, given in (("x", self.x), ("y", self.y)):
            if not isinstance(given, Tensor):
                raise UserError(f"{name} is a {type(given).__name__}: give a tensor")
        features, images = self.x.is_floating_point(), self.x.dtype == torch.uint8
        fits = features or (images and self.x.ndim == 4)
        if not fits or self.x.layout != torch.strided:
            raise UserError(
                f"x is {self.x.dtype} of shape {tuple(self.x.shape)}, {self.x.layout}: give a "
                "dense floating tensor, or uint8 images of shape (n, channels, height, width)"
            )
        allowed = {0} if features else {0, self.x.shape[1]}
        if not {len(self.mean), len(self.std)} <= allowed or min(self.std, default=1) <= 0:
            raise UserError(
                f"mean is {self.mean} and std is {self.std}: give none for features; for uint8 "
                "images none, or one for each channel, std positive"
            )
        _check_labels("y", self.y, len(self.x), self.classes)
        if self.domains is not None:
            _check_labels("domains", self.domains, len(self.x), self.domain_names)

    def __len__(self) -> int:
        return len(self.x)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return tuple(self.x.shape[1:])

    @cached_property
    def digest(self) -> str:
        """16 hexadecimal digits: SHA-256 of labels, normalization and `DIGESTED` of the samples."""
        held = sha256(self.y.cpu().numpy().tobytes())
        held.update(repr((self.classes, self.mean, self.std, self.x.dtype, self.shape)).encode())
        step = max(1, -(-self.x.nbytes // DIGESTED))
        for block in self.x[::step].split(512):  # a mapped file may be larger than the memory
            held.update(block.detach().cpu().contiguous().view(torch.uint8).numpy().data)
        return held.hexdigest()[:16]

    def to(self, device: torch.device | str) -> "DeviceDataset":
        """Copy the data set to another device.

        Raises:
            ValueError: If it does not fit there.
        """
        domains = None if self.domains is None else self.domains.to(device)
        try:
            return replace(self, x=self.x.to(device), y=self.y.to(device), domains=domains)
        except torch.OutOfMemoryError as error:
            raise UserError(
                f"{len(self):,} samples of shape {'x'.join(map(str, self.shape))} take "
                f"{self.x.nbytes / 1e9:.1f} GB, too much for the memory of {device}: "
                "use smaller or fewer of them, or --accelerator cpu"
            ) from error

    def subset(self, index: Tensor | slice) -> "DeviceDataset":
        """The samples at `index`, (m,) int64, copied; or those of a slice, which are a view."""
        domains = None if self.domains is None else self.domains[index]
        return replace(self, x=self.x[index], y=self.y[index], domains=domains)

    @cached_property
    def _scale_and_shift(self) -> list[Tensor]:
        """Of `(pixel / 255 - mean) / std`; as large as a sample, which a CPU vectorizes better."""
        std = torch.tensor(self.std or 1.0, dtype=torch.float32).view(-1, 1, 1)
        mean = torch.tensor(self.mean or 0.0, dtype=torch.float32).view(-1, 1, 1)
        pair = 1 / (255 * std), -mean / std
        return [t.expand(self.shape).contiguous().to(self.x.device) for t in pair]

    @property
    def black(self) -> Tensor:
        """(channels, 1, 1) float32: a black pixel after normalization; 0 for features."""
        if self.x.is_floating_point():
            return torch.zeros(1, 1, 1, device=self.x.device)
        return self._scale_and_shift[1][:, :1, :1]

    def inputs(self, index: Tensor) -> Tensor:
        """The model's inputs for the samples at `index`, an int64 tensor (b,) on the device.

        Returns:
            (b, channels, height, width) float32, normalized, for images; `x[index]` for features.
        """
        x = self.x.index_select(0, index)
        if not x.is_floating_point():
            scale, shift = self._scale_and_shift
            x = torch.addcmul(shift, x.float(), scale)
        return channels_last(x)

    def batches(self, index: Tensor, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Inputs and labels of the samples at `index`, at most `size` at a time, in its order."""
        for batch in index.split(size) if len(index) else ():
            yield self.inputs(batch), self.y[batch]


TrainTest = tuple[DeviceDataset, DeviceDataset]
"""The training and the test part of a data set."""


def channels_last(x: Tensor) -> Tensor:
    """Images in the memory format that is fast in convolutions; anything else unchanged."""
    return x.contiguous(memory_format=torch.channels_last) if x.ndim == 4 else x


def _check_labels(name: str, labels: Tensor, n: int, names: tuple[str, ...]) -> None:
    if labels.shape != (n,) or labels.dtype != torch.int64:
        raise UserError(
            f"{name} is {labels.dtype} of shape {tuple(labels.shape)}: "
            f"give one int64 label for each of {n} samples"
        )
    if not all(isinstance(name, str) for name in names or (None,)) or len({*names}) < len(names):
        raise UserError(f"the names of {name} are {names!r}: give distinct texts")
    if n and not (labels.min() >= 0 and labels.max() < len(names)):
        raise UserError(
            f"{name} goes from {int(labels.min())} to {int(labels.max())}, but there are "
            f"{len(names)} names for it: labels must lie in 0..{len(names) - 1}"
        )


def pixel_moments(x: Tensor) -> Tensor:
    """Mean and mean square of each channel of uint8 images (n, channels, height, width) in [0, 1].

    Returns:
        (2, channels) float64.
    """
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
