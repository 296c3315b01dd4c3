"""Folders of images, decoded once into a memory map that later calls open."""

import os
import shutil
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from errno import ENOSPC
from hashlib import sha256
from math import ceil
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from fl_lightning.data.dataset import DeviceDataset, TrainTest, mean_and_std, pixel_moments

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".ppm", ".pgm", ".gif", ".tif", ".tiff")
FILES_PER_TASK = 64
"""Images decoded by one task of the thread pool."""
LARGE_FILE = 10_000
"""Bytes."""


def image_folder(
    root: Path | str, size: int | None = None, cache: Path | str | None = None, crop: float = 1.0
) -> TrainTest:
    """Images in folders by class: `root/train/<class>/*.jpg` and `root/test/<class>/*.jpg`.

    Images become RGB of 8 bits, upright as their EXIF orientation says; 16 bits are scaled. Of
    several frames or pages the first is read. The first call decodes them into a memory map. Later
    calls open it as long as names, sizes and times of the files are the same. Mean and standard
    deviation are those of the training pixels. Files with other suffixes than `SUFFIXES` are left
    out with a warning.

    Args:
        root: The folder.
        size: Images are scaled and cut around the center to size x size; None keeps images that all
            share one size.
        cache: The folder of memory maps, `root/.cache` by default.
        crop: The share of the shorter side that is kept when `size` cuts around the center; 0.875
            is the common "scale to 256, cut out 224".

    Returns:
        The training and the test set, whose images are read from the map on use.

    Raises:
        FileNotFoundError: If there is no such folder, or no image in it.
        ValueError: If an image cannot be read, a class has none, images differ in size without
            `size`, a number is out of range, or the disk has no room for the map.
    """
    root = Path(root)
    listing = _list_images(root, ["train", "test"], "train/<class>/*.jpg and test/<class>/*.jpg")
    train_classes = {name for group, name in listing.folders if group == 0}
    for _, name in listing.folders:
        if name not in train_classes:
            raise ValueError(
                f"{root / 'test' / name} has no counterpart in {root / 'train'}: add or remove it"
            )
    images, moments = _decoded(listing, size, crop, cache)
    mean, std = mean_and_std(moments[0])
    classes, y, _ = listing.labels()
    train, test = (
        DeviceDataset(x, labels, classes, mean, std)
        for x, labels in zip(images.split(listing.sizes), y.split(listing.sizes), strict=True)
    )
    return train, test


def domain_folder(
    root: Path | str,
    test_domain: str,
    size: int | None = None,
    cache: Path | str | None = None,
    crop: float = 1.0,
    domains: tuple[str, ...] | None = None,
) -> TrainTest:
    """Images by domain, `root/<domain>/<class>/*.jpg`, with one domain held out for testing.

    One map serves whichever domain is held out. Training images around a domain held out in the
    middle are copied from the map into memory.

    Args:
        root: The folder.
        test_domain: The domain held out.
        size: As in `image_folder`.
        cache: As in `image_folder`.
        crop: As in `image_folder`.
        domains: The domains that are used, all subfolders by default.

    Returns:
        All other domains, and the held-out one, both with their `domains`.

    Raises:
        FileNotFoundError: If there is no such folder, or no image in it.
        ValueError: If the domain is unknown, and as in `image_folder`.
    """
    root, layout = Path(root), "<domain>/<class>/*.jpg"
    names = list(domains or _subfolders(root, layout))
    if test_domain not in names:
        raise ValueError(f"{root} has no domain {test_domain!r}: choose one of {', '.join(names)}")
    listing = _list_images(root, names, layout)
    images, moments = _decoded(listing, size, crop, cache)
    classes, y, domain = listing.labels()
    held_out = domain == names.index(test_domain)
    sizes = torch.tensor(listing.sizes, dtype=torch.float64)
    weights = sizes.where(torch.arange(len(names)) != names.index(test_domain), 0.0)
    mean, std = mean_and_std((moments * (weights / weights.sum())[:, None, None]).sum(0))

    def part(chosen: Tensor) -> DeviceDataset:
        where = chosen.nonzero().flatten()
        first, stop = int(where[0]), int(where[-1]) + 1
        x = images[first:stop] if stop - first == len(where) else images[chosen]
        return DeviceDataset(x, y[chosen], classes, mean, std, domain[chosen], tuple(names))

    return part(~held_out), part(held_out)


@dataclass(frozen=True)
class _Listing:
    """The image files of a folder by group (a split or a domain), class and name.

    Attributes:
        root: The folder.
        folders: Group and class of each class folder.
        files: The files in each class folder, relative to root.
        sizes: The number of files in each group.
        digest: Changes with names, sizes and times of the files.
    """

    root: Path
    folders: list[tuple[int, str]]
    files: list[list[str]]
    sizes: list[int]
    digest: str

    def labels(self) -> tuple[tuple[str, ...], Tensor, Tensor]:
        """The classes, and the class and the group of every file."""
        classes = sorted({name for _, name in self.folders})
        counts = torch.tensor([len(files) for files in self.files])
        numbers = [(classes.index(name), group) for group, name in self.folders]
        y, groups = torch.tensor(numbers).repeat_interleave(counts, 0).T.contiguous()
        return tuple(classes), y, groups


def _subfolders(folder: Path, layout: str) -> list[str]:
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is not a folder: the layout is {layout}")
    return sorted(p.name for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))


def _list_images(root: Path, groups: Sequence[str], layout: str) -> _Listing:
    folders, listed, sizes = list[tuple[int, str]](), list[list[str]](), list[int]()
    digest = sha256(b"2")  # another number when images are read in another way
    for number, group in enumerate(groups):
        names = _subfolders(root / group, f"{root}/{layout}")
        for name in names:
            files = [f"{group}/{name}/{file}" for file in _images_in(root / group / name)]
            for file in files:
                stat = os.stat(f"{root}/{file}")
                digest.update(f"{file}\0{stat.st_size}\0{stat.st_mtime_ns}\n".encode())
            listed.append(files)
        folders += [(number, name) for name in names]
        sizes.append(sum(map(len, listed)) - sum(sizes))
        if not sizes[-1]:
            raise FileNotFoundError(
                f"{root / group} holds no images: the layout is {root}/{layout}"
            )
    return _Listing(root, folders, listed, sizes, digest.hexdigest()[:16])


def _images_in(folder: Path) -> list[str]:
    """The names of a class's images, sorted."""
    names = sorted(name for name in os.listdir(folder) if not name.startswith("."))
    images = [name for name in names if Path(name).suffix.lower() in SUFFIXES]
    if others := [name for name in names if Path(name).suffix.lower() not in SUFFIXES]:
        warnings.warn(
            f"{len(others)} files of {folder} are left out, such as {others[0]}: convert images to "
            f"one of {' '.join(SUFFIXES)}",
            stacklevel=2,
        )
    if not images:
        raise ValueError(f"{folder} holds no images: add some, or remove the folder")
    return images


def _decoded(
    listing: _Listing, size: int | None, crop: float, cache: Path | str | None
) -> tuple[Tensor, Tensor]:
    """All images as a mapped (n, 3, height, width) uint8 tensor, and each group's pixel moments."""
    if size is not None and size < 1:
        raise ValueError(f"size is {size}: give pixels, or None to keep images as they are")
    if not 0 < crop <= 1 or (crop < 1 and size is None):
        raise ValueError(f"crop is {crop} and size is {size}: give a share from 0 to 1, and a size")
    cache = Path(cache or listing.root / ".cache")
    folder = cache / (f"{listing.digest}-{size or 'full'}" + (f"-{crop}" if crop < 1 else ""))
    if not folder.exists():
        aside = cache / f"{uuid4().hex}.part"
        try:
            aside.mkdir(parents=True)
        except OSError as error:
            raise ValueError(f"{cache} cannot be written ({error}): name a cache folder") from error
        try:
            _decode(listing, size, crop, aside)
            os.replace(aside, folder)
        except OSError:
            if not folder.exists():  # otherwise another process was faster
                raise
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    # copy on write: torch wants memory that it may write to, the file stays as it is
    images = torch.from_numpy(np.load(folder / "images.npy", mmap_mode="c"))
    return images, torch.from_numpy(np.load(folder / "moments.npy"))


def _decode(listing: _Listing, size: int | None, crop: float, folder: Path) -> None:
    paths = [listing.root / file for files in listing.files for file in files]
    height, width = _read(paths[0], size, crop).shape[1:]
    shape = (len(paths), 3, height, width)
    images = np.lib.format.open_memmap(
        folder / "images.npy", mode="w+", dtype=np.uint8, shape=shape
    )
    _reserve(folder / "images.npy")

    def decode(start: int) -> None:
        for number, path in enumerate(paths[start : start + FILES_PER_TASK], start):
            image = _read(path, size, crop)
            if image.shape != shape[1:]:
                raise ValueError(
                    f"{path} has {image.shape[2]}x{image.shape[1]} pixels, {paths[0]} has "
                    f"{width}x{height}: bring all to one size with --data.size"
                )
            images[number] = image

    # opening a file holds the interpreter's lock: threads help only where decoding takes long
    threads = os.cpu_count() if paths[0].stat().st_size > LARGE_FILE else 1
    with ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(decode, range(0, len(paths), FILES_PER_TASK)):
            pass
    images.flush()
    groups = torch.split(torch.from_numpy(images), listing.sizes)
    np.save(folder / "moments.npy", torch.stack([pixel_moments(group) for group in groups]).numpy())


def _reserve(path: Path) -> None:
    """Allocate a sparse file: a mapped page without room on disk would raise SIGBUS."""
    if not hasattr(os, "posix_fallocate"):
        return
    size = path.stat().st_size
    try:
        with path.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, size)
    except OSError as error:
        if error.errno != ENOSPC:
            raise
        raise ValueError(
            f"the decoded images take {size / 1e6:,.1f} MB, more than is free on the disk of "
            f"{path.parent.parent}: free some, or use a smaller size or another cache"
        ) from error


def _read(path: Path, size: int | None, crop: float) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """One image as (3, height, width)."""
    try:
        with Image.open(path) as image:
            if size:  # a large JPEG is decoded at a fraction of its size
                image.draft("RGB", (ceil(size / crop),) * 2)
            ImageOps.exif_transpose(image, in_place=True)
            rgb = _with_eight_bits(image).convert("RGB")
    except (OSError, SyntaxError, ValueError) as error:
        raise ValueError(f"{path} cannot be read ({error}): replace it or remove it") from error
    if size:
        rgb = ImageOps.fit(rgb, (size, size), Image.Resampling.BILINEAR, bleed=(1 - crop) / 2)
    return np.asarray(rgb).transpose(2, 0, 1)


def _with_eight_bits(image: Image.Image) -> Image.Image:
    """Scale gray images of 16 bits, which `convert` would clip; it scales colors itself."""
    if image.mode not in ("I", "F") and not image.mode.startswith("I;16"):
        return image
    pixels = np.asarray(image)
    if image.mode == "F" or pixels.min() < 0 or pixels.max() > 0xFFFF:
        raise ValueError("it has more than 16 bits a pixel")
    return Image.fromarray((pixels >> 8).astype(np.uint8))
