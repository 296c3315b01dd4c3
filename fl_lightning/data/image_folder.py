"""Folders of images, decoded once into a memory map that later calls open."""

import os
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from hashlib import sha256
from math import ceil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from fl_lightning.core.constraints import PositiveFraction, PositiveInt, checked
from fl_lightning.data.dataset import DeviceDataset, TrainTest, mean_and_std, pixel_moments

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".ppm", ".pgm", ".gif", ".tif", ".tiff")
FILES_PER_TASK = 64
"""Images decoded by one task of the thread pool."""
LARGE_FILE = 10_000
"""Bytes."""


@checked
def image_folder(
    root: Path | str,
    size: PositiveInt | None = None,
    cache: Path | str | None = None,
    crop: PositiveFraction = 1.0,
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
    layout = f"{root}/<train or test>/<class>/*.jpg"
    in_train, in_test = (_subfolders(root / part, layout) for part in ("train", "test"))
    if extra := sorted(set(in_test) - set(in_train)):
        raise ValueError(
            f"{root}/test/{extra[0]} has no counterpart in {root}/train: add or remove it"
        )
    train, test = _hold_out(root, ("train", "test"), 1, layout, size, cache, crop)
    none: dict[str, Any] = {"domains": None, "domain_names": ()}
    return replace(train, **none), replace(test, **none)


@checked
def domain_folder(
    root: Path | str,
    test_domain: str,
    size: PositiveInt | None = None,
    cache: Path | str | None = None,
    crop: PositiveFraction = 1.0,
    domains: tuple[str, ...] | None = None,
) -> TrainTest:
    """Images by domain, `root/<domain>/<class>/*.jpg`, with one domain held out for testing.

    One map serves whichever domain is held out. Training images around a domain held out in the
    middle are copied from the map into memory.

    Args:
        root: The folder.
        test_domain: The domain held out.
        size: Images are scaled and cut around the center to size x size; None keeps images that all
            share one size.
        cache: The folder of memory maps, `root/.cache` by default.
        crop: The share of the shorter side that is kept when `size` cuts around the center.
        domains: The domains that are used, all subfolders by default.

    Returns:
        All other domains, and the held-out one, both with their `domains`.

    Raises:
        FileNotFoundError: If there is no such folder, or no image in it.
        ValueError: If the domain is unknown, and as in `image_folder`.
    """
    root, layout = Path(root), f"{root}/<domain>/<class>/*.jpg"
    names = tuple(domains or _subfolders(root, layout))
    if test_domain not in names:
        raise ValueError(f"{root} has no domain {test_domain!r}: choose one of {', '.join(names)}")
    return _hold_out(root, names, names.index(test_domain), layout, size, cache, crop)


def _hold_out(
    root: Path,
    groups: tuple[str, ...],
    held_out: int,
    layout: str,
    size: int | None,
    cache: Path | str | None,
    crop: float,
) -> TrainTest:
    """All groups of class folders but one for training, and that one for testing, as domains."""
    if crop < 1 and size is None:
        raise ValueError(f"crop is {crop} and size is None: give both, or omit crop")
    files = [
        (number, name, f"{group}/{name}/{image}")
        for number, group in enumerate(groups)
        for name in _subfolders(root / group, layout)
        for image in _images_in(root / group / name)
    ]
    numbers, names, paths = zip(*files, strict=True)
    domains, (classes, y) = torch.tensor(numbers), np.unique(names, return_inverse=True)
    sizes = domains.bincount()
    images, moments = _decoded(
        root, paths, sizes.tolist(), size, crop, Path(cache or root / ".cache")
    )
    weights = sizes.double().index_fill(0, torch.tensor(held_out), 0.0)
    mean, std = mean_and_std((moments * (weights / weights.sum())[:, None, None]).sum(0))
    whole = DeviceDataset(
        images, torch.from_numpy(y), tuple(classes.tolist()), mean, std, domains, groups
    )

    def part(chosen: Tensor) -> DeviceDataset:
        where = chosen.nonzero().flatten()
        first, stop = int(where[0]), int(where[-1]) + 1
        x = images[first:stop] if stop - first == len(where) else images[chosen]
        return replace(whole, x=x, y=whole.y[chosen], domains=domains[chosen])

    return part(domains != held_out), part(domains == held_out)


def _subfolders(folder: Path, layout: str) -> list[str]:
    found = folder.iterdir() if folder.is_dir() else ()
    names = sorted(p.name for p in found if p.is_dir() and not p.name.startswith("."))
    if not names:
        raise FileNotFoundError(f"{folder} holds no folders: the layout is {layout}")
    return names


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
    root: Path, files: Sequence[str], sizes: list[int], size: int | None, crop: float, cache: Path
) -> tuple[Tensor, Tensor]:
    """All images as a mapped (n, 3, height, width) uint8 tensor, and each group's pixel moments."""
    digest = sha256(b"2")  # another number when images are read in another way
    for file in files:
        stat = os.stat(root / file)
        digest.update(f"{file}\0{stat.st_size}\0{stat.st_mtime_ns}\n".encode())
    name = f"{digest.hexdigest()[:16]}-{size or 'full'}" + (f"-{crop}" if crop < 1 else "")
    folder = cache / name
    if not folder.exists():
        try:
            cache.mkdir(parents=True, exist_ok=True)
            scratch = TemporaryDirectory(dir=cache)
        except OSError as error:
            raise ValueError(f"{cache} cannot be written ({error}): name a cache folder") from error
        with scratch:
            made = Path(scratch.name) / name
            made.mkdir()
            _decode([root / file for file in files], sizes, size, crop, made)
            try:
                made.rename(folder)
            except OSError:
                if not folder.is_dir():  # else another process was faster
                    raise
    # copy on write: torch wants memory that it may write to, the file stays as it is
    images = torch.from_numpy(np.load(folder / "images.npy", mmap_mode="c"))
    return images, torch.from_numpy(np.load(folder / "moments.npy"))


def _decode(
    paths: list[Path], sizes: list[int], size: int | None, crop: float, folder: Path
) -> None:
    height, width = _read(paths[0], size, crop).shape[1:]
    shape = (len(paths), 3, height, width)
    file = folder / "images.npy"
    images = np.lib.format.open_memmap(file, mode="w+", dtype=np.uint8, shape=shape)
    _reserve(file)

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
    groups = torch.split(torch.from_numpy(images), sizes)
    np.save(folder / "moments.npy", torch.stack([pixel_moments(group) for group in groups]).numpy())


def _reserve(path: Path) -> None:
    """Allocate a sparse file: a mapped page without room on disk would raise SIGBUS."""
    size = path.stat().st_size
    try:
        with path.open("r+b") as file:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)
    except OSError as error:
        raise ValueError(
            f"the decoded images take {size / 1e6:,.1f} MB, not free in {path.parents[2]} "
            f"({error.strerror}): free some, or use a smaller size or another cache"
        ) from error


def _read(path: Path, size: int | None, crop: float) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """One image as (3, height, width)."""
    try:
        with Image.open(path) as image:
            if size:  # a large JPEG is decoded at a fraction of its size
                image.draft("RGB", (ceil(size / crop),) * 2)
            ImageOps.exif_transpose(image, in_place=True)
            rgb = _with_eight_bits(image).convert("RGB")
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
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
