"""Folders of images, decoded once into a file that later calls map into memory."""

import os
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from hashlib import sha256
from math import ceil
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor
from typing_extensions import Doc

from fl_lightning.core.constraints import PositiveFraction, PositiveInt, checked
from fl_lightning.data.dataset import DeviceDataset, TrainTest, mean_and_std, pixel_moments
from fl_lightning.errors import UserError
from fl_lightning.files import atomic

Root = Annotated[Path | str, Doc("The folder.")]
Size = Annotated[
    PositiveInt | None,
    Doc(
        "Images are scaled and cut around the center to size x size; none keeps images that all "
        "have the same size."
    ),
]
Cache = Annotated[
    Path | str | None, Doc("The folder of decoded images; none for `.cache` next to the images.")
]
Crop = Annotated[
    PositiveFraction,
    Doc(
        "The fraction of the shorter side that remains when images are cut; 0.875 is the common "
        "'resize to 256, crop to 224'."
    ),
]

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".ppm", ".pgm", ".gif", ".tif", ".tiff")


@checked
def image_folder(
    root: Root,
    size: Size = None,
    cache: Cache = None,
    crop: Crop = 1.0,
) -> TrainTest:
    """Images in folders by class: `root/train/<class>/*.jpg` and `root/test/<class>/*.jpg`.

    Images become 8-bit RGB, upright as their EXIF orientation says; 16-bit images are scaled. Of
    several frames or pages the first is read. Files with other suffixes than `SUFFIXES` are left
    out with a warning. Mean and standard deviation are those of the training pixels.

    The first call decodes all images, which must fit in memory, and writes them to the cache. Later
    calls map that file into memory, as long as the images' names, sizes and times are the same.

    Raises:
        UserError: If a folder is missing or has no folders of classes, an image cannot be read, a
            class has no images or no training images, images differ in size without `size`, a
            number is out of range, or the cache cannot be written.
    """
    split = domain_folder(root, "test", size, cache, crop, ("train", "test"))
    train, test = (replace(part, domains=None, domain_names=()) for part in split)
    return train, test


@checked
def domain_folder(
    root: Root,
    test_domain: str,
    size: Size = None,
    cache: Cache = None,
    crop: Crop = 1.0,
    domains: tuple[str, ...] | None = None,
) -> TrainTest:
    """Images by domain, `root/<domain>/<class>/*.jpg`, with one domain held out for testing.

    Images are read as by `image_folder`. One file in the cache serves whichever domain is held out.

    Args:
        test_domain: The domain held out.
        domains: The domains that are used, all subfolders by default.

    Returns:
        All other domains, and the held-out one, both with their `domains`.

    Raises:
        UserError: If the domain is unknown, and as in `image_folder`.
    """
    if crop < 1 and size is None:
        raise UserError(f"crop is {crop} and size is None: give both, or omit crop")
    root = Path(root)
    names = domains or tuple(p.name for p in _subfolders(root, f"{root}/<domain>/<class>/*.jpg"))
    if test_domain not in names or len(names) < 2:
        raise UserError(
            f"test_domain is {test_domain!r}, and the domains in {root} are {', '.join(names)}: "
            "name one of at least two"
        )
    by_domain = [_images_in(root / name) for name in names]
    sizes = torch.tensor([len(paths) for paths in by_domain])
    paths = [path for part in by_domain for path in part]
    x, moments = _decoded(paths, sizes, size, crop, Path(cache or root / ".cache"))
    classes, y = np.unique([path.parent.name for path in paths], return_inverse=True)
    trained = torch.tensor([name != test_domain for name in names])
    weights = sizes[trained].double()[:, None, None]
    mean, std = mean_and_std((moments[trained] * (weights / weights.sum())).sum(0))
    number = torch.arange(len(names)).repeat_interleave(sizes)
    whole = DeviceDataset(x, torch.from_numpy(y), (*classes.tolist(),), mean, std, number, names)

    def part(chosen: Tensor) -> DeviceDataset:
        where = chosen.nonzero().flatten()
        run = slice(int(where[0]), int(where[-1]) + 1)
        return whole.subset(where if run.stop - run.start > len(where) else run)

    train, test = part(trained[number]), part(~trained[number])
    if extra := {*test.y.tolist()} - {*train.y.tolist()}:
        name = classes[min(extra)]
        raise UserError(
            f"{root / test_domain / name} is a class without training images: add some, or "
            "remove the folder"
        )
    return train, test


def _subfolders(folder: Path, layout: str) -> list[Path]:
    found = sorted(folder.glob("[!.]*/"))
    if not found:
        raise UserError(f"{folder} holds no folders: the layout is {layout}")
    return found


def _images_in(folder: Path) -> list[Path]:
    """The images of all classes in a folder, sorted by class and name."""
    images = list[Path]()
    for of_class in _subfolders(folder, f"{folder}/<class>/*.jpg"):
        files = sorted(of_class.glob("[!.]*"))
        found = [file for file in files if file.suffix.lower() in SUFFIXES]
        if others := sorted({*files} - {*found}):
            warnings.warn(
                f"{len(others)} files of {of_class} are left out, such as {others[0].name}: "
                f"convert images to one of {' '.join(SUFFIXES)}",
                stacklevel=2,
            )
        if not found:
            raise UserError(f"{of_class} holds no images: add some, or remove the folder")
        images += found
    return images


def _decoded(
    paths: Sequence[Path], sizes: Tensor, size: int | None, crop: float, cache: Path
) -> tuple[Tensor, Tensor]:
    """The images of several groups, of these sizes.

    Returns:
        (n, 3, height, width) uint8, mapped from the file in the cache, and (groups, 2, 3), their
        `pixel_moments`.
    """
    digest = sha256(repr((4, size, crop, sizes.tolist())).encode())  # 4: how images are read
    for path in paths:
        stat = path.stat()
        digest.update(f"{path.parts[-3:]} {stat.st_size} {stat.st_mtime_ns}\n".encode())
    file = cache / f"{digest.hexdigest()[:16]}.pt"
    if not file.exists():
        own = file.with_suffix(f".{os.getpid()}")  # several processes may decode the same images
        try:
            with atomic(own) as out:  # opened first, since decoding may take long
                x = _decode(paths, size, crop)
                groups = x.split(sizes.tolist())
                torch.save((x, torch.stack([pixel_moments(group) for group in groups])), out)
            own.replace(file)
        except OSError as error:
            raise UserError(
                f"the decoded images cannot be written to {cache} ({error.strerror}): free space "
                "there, or name another folder with --data.cache"
            ) from error
    x, moments = torch.load(file, mmap=True)
    return x, moments


def _decode(paths: Sequence[Path], size: int | None, crop: float) -> Tensor:
    shape = _read(paths[0], size, crop).shape
    x = torch.empty(len(paths), *shape, dtype=torch.uint8)

    def decode(some: Tensor) -> None:
        for i in some.tolist():
            image = _read(paths[i], size, crop)
            if image.shape != shape:
                raise UserError(
                    f"{paths[i]} has {image.shape[2]}x{image.shape[1]} pixels, {paths[0]} has "
                    f"{shape[2]}x{shape[1]}: bring all to one size with --data.size"
                )
            x[i] = image

    with ThreadPoolExecutor() as pool:
        for _ in pool.map(decode, torch.arange(len(paths)).split(64)):
            pass
    if (most := int(x.max())) < 64:
        warnings.warn(
            f"no pixel is above {most} of 255: images of 16 bits that use fewer lose gray levels, "
            "so scale them to 16 bits before",
            stacklevel=2,
        )
    return x


def _read(path: Path, size: int | None, crop: float) -> Tensor:
    """One image as (3, height, width) uint8."""
    try:
        with Image.open(path) as image:
            if size:  # a large JPEG is decoded at a fraction of its size
                image.draft("RGB", (ceil(size / crop),) * 2)
            ImageOps.exif_transpose(image, in_place=True)
            rgb = _with_eight_bits(image).convert("RGB")
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise UserError(f"{path} cannot be read ({error}): replace it or remove it") from error
    if size:
        rgb = ImageOps.fit(rgb, (size, size), Image.Resampling.BILINEAR, bleed=(1 - crop) / 2)
    return torch.from_numpy(np.array(rgb)).permute(2, 0, 1)


def _with_eight_bits(image: Image.Image) -> Image.Image:
    """Scale gray images of 16 bits, which `convert` would clip; it scales colors itself."""
    if image.mode not in ("I", "F") and not image.mode.startswith("I;16"):
        return image
    pixels = np.asarray(image)
    if image.mode == "F" or (image.mode, image.format) == ("I", "TIFF"):
        raise UserError("its pixels are signed or of more than 16 bits, whose range is not known")
    return Image.fromarray((pixels >> 8).astype(np.uint8))
