"""Folders of images, decoded once into a memory map and opened from it in no time afterwards."""

import os
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from errno import ENOSPC
from hashlib import sha256
from math import ceil
from pathlib import Path
from uuid import uuid4

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from fl_lightning.data.dataset import DeviceDataset, mean_and_std, pixel_moments

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".ppm")
TOGETHER = 64  # images decoded by one task of the thread pool
LARGE_FILE = 10_000  # bytes


def image_folder(
    root: Path | str, size: int | None = None, cache: Path | str | None = None, crop: float = 1.0
) -> tuple[DeviceDataset, DeviceDataset]:
    """Training and test images in folders by class: `root/train/<class>/*.jpg` and `root/test/<class>/*.jpg`.

    Images become RGB. The first call decodes them all into a memory map; later calls open that map,
    as long as names, sizes and times of the files are the same. Mean and standard deviation are
    those of the training pixels.

    Args:
        root: the folder.
        size: images are scaled and cut around the centre to size x size; None keeps images that all
            share one size.
        cache: where memory maps are kept, `root/.cache` by default.
        crop: how much of the shorter side is kept when `size` cuts around the centre; 0.875 is the
            common "scale to 256, cut out 224".

    Returns:
        The training and the test data set, whose images are read from the map when they are used.

    Raises:
        FileNotFoundError: there is no such folder, or no images in it.
        ValueError: an image that cannot be read, images of unequal size without `size`, a number
            out of range, or a disk without room for the map.
    """
    root = Path(root)
    listing = _list_images(root, ["train", "test"], "train/<class>/*.jpg and test/<class>/*.jpg")
    train_classes = {name for group, name in listing.folders if group == 0}
    unknown = sorted({name for _, name in listing.folders} - train_classes)
    if unknown:
        raise ValueError(
            f"{root / 'test' / unknown[0]} has no counterpart in {root / 'train'}; add it or remove it."
        )
    images, moments = _decoded(listing, size, crop, cache)
    mean, std = mean_and_std(moments[0])
    classes, y, _ = listing.labels()
    n = listing.group_sizes()[0]
    return DeviceDataset(images[:n], y[:n], classes, mean, std), DeviceDataset(
        images[n:], y[n:], classes, mean, std
    )


def domain_folder(
    root: Path | str,
    test_domain: str,
    size: int | None = None,
    cache: Path | str | None = None,
    crop: float = 1.0,
    domains: tuple[str, ...] | None = None,
) -> tuple[DeviceDataset, DeviceDataset]:
    """Images by domain, one domain held out for testing: `root/<domain>/<class>/*.jpg`, as in OfficeHome and DomainNet.

    Decoding, `size`, `cache` and `crop` are as in `image_folder`; the map is the same whichever
    domain is held out. Training images around a domain held out in the middle are copied from the
    map into memory.

    Args:
        root: the folder.
        test_domain: the name of the domain that is held out.
        size: as in `image_folder`.
        cache: as in `image_folder`.
        crop: as in `image_folder`.
        domains: the domains that are used, all subfolders by default.

    Returns:
        All other domains, and the held-out one; `domains` is filled in.

    Raises:
        FileNotFoundError: there is no such folder, or no images in it.
        ValueError: an unknown domain, and as in `image_folder`.
    """
    root = Path(root)
    layout = "<domain>/<class>/*.jpg"
    names = list(domains or _subfolders(root, layout))
    if test_domain not in names:
        raise ValueError(f"{root} has no domain {test_domain!r}; give one of {', '.join(names)}.")
    listing = _list_images(root, names, layout)
    images, moments = _decoded(listing, size, crop, cache)
    classes, y, domain = listing.labels()
    held_out = domain == names.index(test_domain)
    sizes = torch.tensor(listing.group_sizes(), dtype=torch.float64)
    weights = sizes.where(torch.arange(len(names)) != names.index(test_domain), 0.0)
    mean, std = mean_and_std((moments * (weights / weights.sum())[:, None, None]).sum(0))

    def part(chosen: Tensor) -> DeviceDataset:
        where = chosen.nonzero().flatten()
        first, stop = int(where[0]), int(where[-1]) + 1
        x = images[first:stop] if stop - first == len(where) else images[chosen]
        return DeviceDataset(x, y[chosen], classes, mean, std, domain[chosen], tuple(names))

    return part(~held_out), part(held_out)


@dataclass
class _Listing:
    """The image files of a folder, group by group (a split or a domain), class by class, in order of their names."""

    root: Path
    groups: list[str]
    folders: list[tuple[int, str]]  # group and class of every class folder
    counts: list[int]  # images in it
    files: list[str]  # relative to root
    digest: str

    def group_sizes(self) -> list[int]:
        sizes = [0] * len(self.groups)
        for (group, _), count in zip(self.folders, self.counts, strict=True):
            sizes[group] += count
        return sizes

    def labels(self) -> tuple[tuple[str, ...], Tensor, Tensor]:
        """The classes, and for every file its class and its group."""
        classes = sorted({name for _, name in self.folders})
        number = {name: label for label, name in enumerate(classes)}
        counts = torch.tensor(self.counts)
        y = torch.tensor([number[name] for _, name in self.folders]).repeat_interleave(counts)
        groups = torch.tensor([group for group, _ in self.folders]).repeat_interleave(counts)
        return tuple(classes), y, groups


def _subfolders(folder: Path, layout: str) -> list[str]:
    if not folder.is_dir():
        raise FileNotFoundError(
            f"looked for images in {folder}, which is not a folder; the layout is {layout}."
        )
    with os.scandir(folder) as entries:
        return sorted(
            entry.name for entry in entries if entry.is_dir() and not entry.name.startswith(".")
        )


def _list_images(root: Path, groups: Sequence[str], layout: str) -> _Listing:
    listing = _Listing(root, list(groups), [], [], [], "")
    digest = sha256()
    for number, group in enumerate(groups):
        for name in _subfolders(root / group, f"{root}/{layout}"):
            with os.scandir(root / group / name) as entries:
                found = sorted(
                    (e for e in entries if e.name.lower().endswith(SUFFIXES)), key=lambda e: e.name
                )
            for entry in found:
                stat = entry.stat()
                digest.update(
                    f"{group}/{name}/{entry.name}\0{stat.st_size}\0{stat.st_mtime_ns}\n".encode()
                )
            listing.folders.append((number, name))
            listing.counts.append(len(found))
            listing.files += [f"{group}/{name}/{entry.name}" for entry in found]
    for group, size in zip(groups, listing.group_sizes(), strict=True):
        if not size:
            raise FileNotFoundError(
                f"there are no images in {root / group}; the layout is {root}/{layout}."
            )
    listing.digest = digest.hexdigest()[:16]
    return listing


def _decoded(
    listing: _Listing, size: int | None, crop: float, cache: Path | str | None
) -> tuple[Tensor, Tensor]:
    """All images as a mapped (n, 3, height, width) uint8 tensor, and the pixel moments of every group."""
    if size is not None and size < 1:
        raise ValueError(
            f"size is {size}; give a number of pixels, or None to keep images as they are."
        )
    if not 0 < crop <= 1 or (crop < 1 and size is None):
        raise ValueError(
            f"crop is {crop} and size is {size}; give a share of the shorter side up to 1, and a size."
        )
    cache = Path(cache or listing.root / ".cache")
    folder = cache / (f"{listing.digest}-{size or 'full'}" + (f"-{crop}" if crop < 1 else ""))
    if not folder.exists():
        aside = cache / f"{uuid4().hex}.part"
        try:
            aside.mkdir(parents=True)
        except OSError as error:
            raise ValueError(
                f"cannot write decoded images to {cache} ({error}); pass a cache folder."
            ) from error
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
    paths = [listing.root / file for file in listing.files]
    height, width = _read(paths[0], size, crop).shape[1:]
    shape = (len(paths), 3, height, width)
    images = np.lib.format.open_memmap(
        folder / "images.npy", mode="w+", dtype=np.uint8, shape=shape
    )
    _reserve(folder / "images.npy")

    def decode(start: int) -> None:
        for number in range(start, min(start + TOGETHER, len(paths))):
            image = _read(paths[number], size, crop)
            if image.shape != shape[1:]:
                raise ValueError(
                    f"{paths[number]} has {image.shape[2]}x{image.shape[1]} pixels, {paths[0]} has {width}x{height}; "
                    "pass --data.size to bring all images to one size."
                )
            images[number] = image

    # opening a file holds the interpreter's lock: threads slow small files down, and help where decoding takes long
    threads = os.cpu_count() if paths[0].stat().st_size > LARGE_FILE else 1
    with ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(decode, range(0, len(paths), TOGETHER)):
            pass
    images.flush()
    groups = torch.split(torch.from_numpy(images), listing.group_sizes())
    np.save(folder / "moments.npy", torch.stack([pixel_moments(group) for group in groups]).numpy())


def _reserve(path: Path) -> None:
    """Give a sparse file its room on disk: a mapped page that found the disk full would end the process with SIGBUS."""
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
            f"the decoded images take {size / 1e6:,.1f} MB, for which the disk of {path.parent.parent} has no room; "
            "free some, pass a smaller size, or move the images to a larger disk."
        ) from error


def _read(
    path: Path, size: int | None, crop: float
) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """One image as (3, height, width)."""
    try:
        with Image.open(path) as image:
            if size:
                image.draft(
                    "RGB", (ceil(size / crop),) * 2
                )  # a large JPEG is decoded at a fraction of its size
            colour = image.convert("RGB")
    except (OSError, SyntaxError, ValueError) as error:
        raise ValueError(
            f"{path} cannot be read as an image ({error}); replace it or remove it."
        ) from error
    if size:
        colour = ImageOps.fit(colour, (size, size), Image.Resampling.BILINEAR, bleed=(1 - crop) / 2)
    return np.asarray(colour).transpose(2, 0, 1)
