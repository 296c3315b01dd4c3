"""Augmentation of a whole batch on its device, with all random numbers of a visit drawn beforehand."""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class CropFlip:
    """Random crops of the padded image, horizontal flips and holes, each sample by itself.

    Images are padded and cut out after normalisation, so that "zero" and holes are the mean colour.

    FL-Simulator, FedLESAM, FedTOGA and FedSSG crop every other sample of CIFAR:
    `CropFlip(crop=0.5)`. FedSOL crops every sample: `CropFlip()` for MNIST and SVHN,
    `CropFlip(cutout=16)` for CIFAR-10, `CropFlip(mode="reflect")` for CINIC-10; for MedMNIST it
    flips only, `CropFlip(padding=0)`.

    Args:
        padding: pixels added on every side; a crop begins 0 to 2 * padding pixels from the corner.
            0: no crops.
        crop: the probability with which a sample is cropped at all.
        flip: the probability of a horizontal flip.
        mode: how the border is filled.
        cutout: side of the square hole made last, whose centre may be any pixel, so that it may
            hang over the border (Cutout, DeVries and Taylor 2017). 0: no hole.

    Raises:
        ValueError: a probability outside [0, 1], a negative padding or hole, or an unknown mode.
    """

    padding: int = 4
    crop: float = 1.0
    flip: float = 0.5
    mode: Literal["zero", "reflect"] = "zero"
    cutout: int = 0

    def __post_init__(self) -> None:
        for name, chance in (("crop", self.crop), ("flip", self.flip)):
            if not 0 <= chance <= 1:
                raise ValueError(
                    f"CropFlip.{name} is {chance}; it is a probability, give a number from 0 to 1."
                )
        for name, pixels in (("padding", self.padding), ("cutout", self.cutout)):
            if pixels < 0:
                raise ValueError(f"CropFlip.{name} is {pixels}; give 0 or more pixels.")
        if self.mode not in ("zero", "reflect"):
            raise ValueError(f"CropFlip.mode is {self.mode!r}; give 'zero' or 'reflect'.")

    def draw(self, n: int, generator: torch.Generator) -> Tensor:
        """All random numbers for n samples: (n, 3) int16 row offset, column offset, flip, on the CPU.

        An offset of `padding` is the image where it was. With `cutout` it is (n, 5): also the row
        and the column of the hole's centre, in 2 ** -15 of height and width.
        """
        offsets = torch.randint(
            0, 2 * self.padding + 1, (n, 2), generator=generator, dtype=torch.int16
        )
        crop, flip = torch.rand(2, n, 1, generator=generator, dtype=torch.float32)
        draws = [offsets.where(crop < self.crop, self.padding), (flip < self.flip).to(torch.int16)]
        if self.cutout:
            draws.append(torch.randint(0, 2**15, (n, 2), generator=generator, dtype=torch.int16))
        return torch.cat(draws, dim=1)

    def apply(self, x: Tensor, draws: Tensor) -> Tensor:
        """The augmented batch, of the same shape.

        Args:
            x: (b, channels, height, width), normalised.
            draws: (b, 3) or (b, 5), of `draw`, on the device of x.
        """
        batch, channels, height, width = x.shape
        top, left, flip = draws[:, :3, None].unbind(1)
        column = torch.arange(width, device=x.device)
        rows = torch.arange(height, device=x.device) + top
        columns = column.where(flip == 0, width - 1 - column) + left
        mode = "constant" if self.mode == "zero" else self.mode
        padded = F.pad(x, (self.padding,) * 4, mode=mode).flatten(2)
        pixels = (rows[:, :, None] * (width + 2 * self.padding) + columns[:, None, :]).view(
            batch, 1, -1
        )
        cropped = padded.gather(2, pixels.expand(-1, channels, -1)).view(x.shape)
        if not self.cutout:
            return cropped
        row, column = draws[:, 3:, None].int().unbind(1)
        hole = (
            self._hole(row, height)[:, None, :, None] & self._hole(column, width)[:, None, None, :]
        )
        return cropped.masked_fill(hole, 0.0)

    def _hole(self, centre: Tensor, length: int) -> Tensor:
        """(b, length) bool, which rows or columns the hole covers; its centre (b, 1) in 2 ** -15 of them."""
        position = (
            torch.arange(length, device=centre.device) - (centre * length >> 15) + self.cutout // 2
        )
        return (position >= 0) & (position < self.cutout)
