"""Published data sets that come as folders of images: CINIC-10, and OfficeHome and DomainNet with a domain held out."""

from dataclasses import replace
from pathlib import Path
from typing import Literal

from fl_lightning.data.dataset import DeviceDataset
from fl_lightning.data.image_folder import domain_folder, image_folder

IMAGENET = (
    (0.485, 0.456, 0.406),
    (0.229, 0.224, 0.225),
)  # mean and std that pretrained models expect
OFFICE_HOME = ("Art", "Clipart", "Product", "Real World")
DOMAIN_NET = ("clipart", "infograph", "painting", "quickdraw", "real", "sketch")


def cinic10(
    root: Path | str = "data", cache: Path | str | None = None
) -> tuple[DeviceDataset, DeviceDataset]:
    """CINIC-10 (Darlow et al. 2018), 90,000 / 90,000 colour images of 32x32 in 10 classes, normalised as in FedSOL.

    In `root/CINIC-10` or in `root` itself: `train/<class>/*.png` and `test/<class>/*.png`; `valid`
    is not used. They are decoded into a memory map once, as by `image_folder`.

    Args:
        root: the folder.
        cache: as in `image_folder`.

    Raises:
        FileNotFoundError: the folders are not there.
    """
    folder = _holding(
        ("train", "test"), "CINIC-10", root, "https://datashare.ed.ac.uk/handle/10283/3192"
    )
    mean, std = (0.47889522, 0.47227842, 0.43047404), (0.24205776, 0.23828046, 0.25874835)
    train, test = image_folder(folder, cache=cache)
    return replace(train, mean=mean, std=std), replace(test, mean=mean, std=std)


def office_home(
    root: Path | str,
    test_domain: Literal["Art", "Clipart", "Product", "Real World"],
    size: int = 224,
    cache: Path | str | None = None,
    crop: float = 0.875,
) -> tuple[DeviceDataset, DeviceDataset]:
    """OfficeHome (Venkateswara et al. 2017), 15,588 images in 65 classes and 4 domains, one held out for testing.

    In `root/OfficeHome` or in `root` itself, as `<domain>/<class>/*.jpg`. Scaled to 256 pixels, cut
    to 224 and normalised as ImageNet, as in FedLESAM, whose clients are `--partition by_domain`
    with 3 or 30 clients.

    Args:
        root: the folder.
        test_domain: the domain that is held out.
        size: pixels of a side.
        cache: as in `image_folder`.
        crop: as in `image_folder`.

    Raises:
        FileNotFoundError: the folders are not there.
        ValueError: an unknown domain, or an image that cannot be read.
    """
    folder = _holding(
        OFFICE_HOME, "OfficeHome", root, "https://www.hemanthdv.org/officeHomeDataset.html"
    )
    return _held_out(folder, test_domain, OFFICE_HOME, size, cache, crop)


def domain_net(
    root: Path | str,
    test_domain: Literal["clipart", "infograph", "painting", "quickdraw", "real", "sketch"],
    size: int = 224,
    cache: Path | str | None = None,
    crop: float = 0.875,
) -> tuple[DeviceDataset, DeviceDataset]:
    """DomainNet (Peng et al. 2019), 586,575 images in 345 classes and 6 domains, one held out for testing.

    In `root/DomainNet` or in `root` itself, otherwise as `office_home`; FedLESAM has 5 or 50
    clients. The memory map takes 88 GB on disk at 224 pixels, 7 GB at 64, and training needs most
    of it in memory.

    Args:
        root: the folder.
        test_domain: the domain that is held out.
        size: pixels of a side.
        cache: as in `image_folder`.
        crop: as in `image_folder`.

    Raises:
        FileNotFoundError: the folders are not there.
        ValueError: an unknown domain, or an image that cannot be read.
    """
    folder = _holding(DOMAIN_NET, "DomainNet", root, "http://ai.bu.edu/M3SDA")
    return _held_out(folder, test_domain, DOMAIN_NET, size, cache, crop)


def _held_out(
    folder: Path,
    test_domain: str,
    domains: tuple[str, ...],
    size: int,
    cache: Path | str | None,
    crop: float,
) -> tuple[DeviceDataset, DeviceDataset]:
    train, test = domain_folder(folder, test_domain, size, cache, crop, domains)
    mean, std = IMAGENET
    return replace(train, mean=mean, std=std), replace(test, mean=mean, std=std)


def _holding(parts: tuple[str, ...], name: str, root: Path | str, url: str) -> Path:
    """`root/name` or `root`, whichever holds all the parts."""
    for folder in (Path(root) / name, Path(root)):
        if all((folder / part).is_dir() for part in parts):
            return folder
    raise FileNotFoundError(
        f"looked for {name} in {Path(root) / name} and in {root}, neither of which holds the folders "
        f"{', '.join(parts)}; unpack there what {url} offers, or pass --data-dir DIR with the folder that holds it."
    )
