"""Augmentation of a whole batch on its device, with all random numbers of a visit drawn beforehand."""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class CropFlip:
    """Random crops of the padded image and horizontal flips, each sample by itself.

    Images are padded after normalisation, so that "zero" is the mean colour. FL-Simulator, FedLESAM and FedSSG crop
    every other sample (`crop=0.5`), FedSOL every sample, on CINIC-10 with `mode="reflect"`.

    Args:
        padding: pixels added on every side; a crop begins 0 to 2 * padding pixels from the corner.
        crop: the probability with which a sample is cropped at all.
        flip: the probability of a horizontal flip.
        mode: how the border is filled.

    Raises:
        ValueError: a probability outside [0, 1], a negative padding or an unknown mode.
    """

    padding: int = 4
    crop: float = 1.0
    flip: float = 0.5
    mode: Literal["zero", "reflect"] = "zero"

    def __post_init__(self) -> None:
        for name, chance in (("crop", self.crop), ("flip", self.flip)):
            if not 0 <= chance <= 1:
                raise ValueError(f"CropFlip.{name} is {chance}; it is a probability, give a number from 0 to 1.")
        if self.padding < 0:
            raise ValueError(f"CropFlip.padding is {self.padding}; give 0 or more pixels.")
        if self.mode not in ("zero", "reflect"):
            raise ValueError(f"CropFlip.mode is {self.mode!r}; give 'zero' or 'reflect'.")

    def draw(self, n: int, generator: torch.Generator) -> Tensor:
        """All random numbers for n samples: (n, 3) int16 row offset, column offset, flip, on the CPU.

        An offset of `padding` is the image where it was.
        """
        offsets = torch.randint(0, 2 * self.padding + 1, (n, 2), generator=generator, dtype=torch.int16)
        crop, flip = torch.rand(2, n, 1, generator=generator, dtype=torch.float32)
        return torch.cat([offsets.where(crop < self.crop, self.padding), (flip < self.flip).to(torch.int16)], dim=1)

    def apply(self, x: Tensor, draws: Tensor) -> Tensor:
        """The augmented batch, of the same shape.

        Args:
            x: (b, channels, height, width), normalised.
            draws: (b, 3), of `draw`, on the device of x.
        """
        batch, channels, height, width = x.shape
        top, left, flip = draws[:, :, None].unbind(1)
        column = torch.arange(width, device=x.device)
        rows = torch.arange(height, device=x.device) + top
        columns = column.where(flip == 0, width - 1 - column) + left
        mode = "constant" if self.mode == "zero" else self.mode
        padded = F.pad(x, (self.padding,) * 4, mode=mode).flatten(2)
        pixels = (rows[:, :, None] * (width + 2 * self.padding) + columns[:, None, :]).view(batch, 1, -1)
        return padded.gather(2, pixels.expand(-1, channels, -1)).view(x.shape)
