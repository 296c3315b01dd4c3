"""Augmentation of a whole batch on its device, with random numbers drawn beforehand."""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fl_lightning.core.constraints import NonNegativeInt, UnitInterval, check
from fl_lightning.errors import UserError


@dataclass(frozen=True)
class CropFlip:
    """Random crops of the padded image, horizontal flips and holes, independent for each sample.

    Images are augmented after normalization, so a zero is the mean color.

    FL-Simulator, FedLESAM, FedTOGA and FedSSG crop every other sample of CIFAR:
    `CropFlip(crop=0.5)`. FedSOL crops every sample, before it normalizes: `CropFlip(mode="black",
    cutout=16)` for CIFAR-10 and MNIST, without holes for SVHN, `CropFlip(mode="reflect")` for
    CINIC-10; for MedMNIST it flips only, `CropFlip(padding=0)`.

    Args:
        padding: Pixels added on every side; a crop begins 0 to 2 * padding pixels from the corner.
            0: no crops.
        crop: The probability that a sample is cropped.
        flip: The probability of a horizontal flip.
        mode: What fills the border: zero, the mean color; black, as with torchvision's `RandomCrop`
            before `Normalize`; reflect, the mirrored image.
        cutout: The side of a square hole, filled with zeros last. Its center is any pixel, so part
            of it may lie outside (Cutout, DeVries and Taylor 2017, arXiv:1708.04552). 0: no hole.

    Raises:
        UserError: If a number is out of range, or the mode is unknown.
    """

    padding: NonNegativeInt = 4
    crop: UnitInterval = 1.0
    flip: UnitInterval = 0.5
    mode: Literal["zero", "black", "reflect"] = "zero"
    cutout: NonNegativeInt = 0

    def __post_init__(self) -> None:
        check(self)

    def check_shape(self, shape: tuple[int, ...]) -> None:
        """Raise a UserError unless samples of this shape can be augmented."""
        if len(shape) != 3 or shape[2] < min(shape[:2]):  # or channels last
            raise UserError(
                "augmentation is for images (channels, height, width), but samples have shape "
                f"{shape}: reorder the axes, or do without"
            )

    def draw(self, n: int, generator: torch.Generator) -> Tensor:
        """Draw the random numbers for n samples, on the CPU.

        Returns:
            (n, 3) int16: row offset, column offset, flip. An offset of `padding` leaves the image
            in place. With `cutout` (n, 5): also row and column of the hole's center, in 2 ** -15 of
            height and width.
        """
        offsets = torch.randint(
            0, 2 * self.padding + 1, (n, 2), generator=generator, dtype=torch.int16
        )
        crop, flip = torch.rand(2, n, 1, generator=generator, dtype=torch.float32)
        draws = [offsets.where(crop < self.crop, self.padding), (flip < self.flip).to(torch.int16)]
        if self.cutout:
            draws.append(torch.randint(0, 2**15, (n, 2), generator=generator, dtype=torch.int16))
        return torch.cat(draws, dim=1)

    def apply(self, x: Tensor, draws: Tensor, black: Tensor) -> Tensor:
        """Augment a batch.

        Args:
            x: (b, channels, height, width), normalized.
            draws: The result of `draw` for the batch, on the device of x.
            black: (channels, 1, 1), a normalized black pixel.
        """
        channels, height, width = x.shape[1:]
        top, left, flip = draws[:, :3, None].unbind(1)
        column = torch.arange(width, device=x.device)
        rows = torch.arange(height, device=x.device) + top
        columns = column.where(flip == 0, width - 1 - column) + left
        pixels = rows[:, :, None] * (width + 2 * self.padding) + columns[:, None, :]
        padded = self._pad(x, black).flatten(2)
        cropped = padded.gather(2, pixels.flatten(1)[:, None].expand(-1, channels, -1))
        cropped = cropped.view(x.shape)
        if not self.cutout:
            return cropped
        row, column = draws[:, 3:, None].int().unbind(1)
        hole = self._hole(row, height)[:, :, None] & self._hole(column, width)[:, None, :]
        return cropped.masked_fill(hole[:, None], 0.0)

    def _pad(self, x: Tensor, black: Tensor) -> Tensor:
        edge, mode = self.padding, "reflect" if self.mode == "reflect" else "constant"
        padded = F.pad(x, (edge,) * 4, mode=mode)
        if self.mode == "black" and edge:
            padded[:] = black
            padded[..., edge:-edge, edge:-edge] = x
        return padded

    def _hole(self, center: Tensor, length: int) -> Tensor:
        """(b, length) bool, the rows or columns of the hole; its center (b, 1) is in 2 ** -15."""
        position = torch.arange(length, device=center.device) - (center * length >> 15)
        return (position >= -(self.cutout // 2)) & (position < self.cutout - self.cutout // 2)
