"""Folders of small random images."""

from pathlib import Path

import numpy as np
from PIL import Image


def write_images(
    root: Path, folders: list[str], each: int = 3, size: tuple[int, int] = (5, 5)
) -> None:
    """Write 0.png, 1.png, ... of width x height into every folder."""
    g = np.random.default_rng(0)
    for folder in folders:
        (root / folder).mkdir(parents=True)
        for number in range(each):
            pixels = g.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
            Image.fromarray(pixels).save(root / folder / f"{number}.png")
