"""Data sets by name: each function returns the training and the test set.

With `download` missing files are fetched. UserError: they are missing or not fetched.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fl_lightning.core.constraints import PositiveInt, checked
from fl_lightning.core.randomness import generator
from fl_lightning.data.dataset import DeviceDataset, TrainTest, mean_and_std, pixel_moments
from fl_lightning.data.folder_sources import cinic10 as cinic10
from fl_lightning.data.folder_sources import domain_net as domain_net
from fl_lightning.data.folder_sources import office_home as office_home
from fl_lightning.errors import UserError

Split = tuple[Tensor, Tensor, tuple[str, ...]]
"""Images (n, channels, height, width), labels and classes."""

DIGITS = tuple("0123456789")
LETTERS = tuple("abcdefghijklmnopqrstuvwxyz")
MEDMNIST = "https://zenodo.org/records/10519652/files"
PATH_CLASSES = (
    "adipose",
    "background",
    "debris",
    "lymphocytes",
    "mucus",
    "smooth muscle",
    "normal colon mucosa",
    "cancer-associated stroma",
    "colorectal adenocarcinoma epithelium",
)
TISSUE_CLASSES = (
    "Collecting Duct, Connecting Tubule",
    "Distal Convoluted Tubule",
    "Glomerular endothelial cells",
    "Interstitial endothelial cells",
    "Leukocytes",
    "Podocytes",
    "Proximal Tubule Segments",
    "Thick Ascending Limb",
)


def digits() -> TrainTest:
    """The 1,797 handwritten digits of 8x8 pixels that come with scikit-learn; no download.

    The split is fixed: one fifth of every class is for testing (1,437 / 360). Mean and standard
    deviation are those of the training pixels.
    """
    from sklearn.datasets import load_digits

    bunch = load_digits()
    x = torch.from_numpy(bunch.images).mul(255 / 16).round().to(torch.uint8)[:, None]
    y = torch.from_numpy(bunch.target).long()
    order = torch.randperm(len(y), generator=generator(0, "digits"))
    order = order[y[order].argsort(stable=True)]
    is_test = torch.zeros(len(y), dtype=torch.bool)
    is_test[order[::5]] = True
    return _normalized((x[~is_test], y[~is_test], DIGITS), (x[is_test], y[is_test], DIGITS))


@checked
def mnist(
    root: Path | str = "data",
    download: bool = True,
    channels: PositiveInt = 1,
    standardize: bool = True,
) -> TrainTest:
    """MNIST (LeCun et al. 1998), 60,000 / 10,000 gray images of 28x28 in 10 classes.

    Args:
        root: The folder that holds `MNIST/raw`.
        download: Fetch missing files.
        channels: Copies of the gray channel; FedSOL has 3.
        standardize: Subtract the mean of the pixels, and divide by their standard deviation; else
            they lie between 0 and 1.
    """

    def read(raw: Any) -> Split:
        x, y, classes = _gray(raw)
        return x.expand(-1, channels, -1, -1), y, classes

    mean, std = (0.1307, 0.3081) if standardize else (0.0, 1.0)
    each = (mean,) * channels, (std,) * channels
    return _load("MNIST", root, "MNIST/raw", download, read, *each)


def fashion_mnist(root: Path | str = "data", download: bool = True) -> TrainTest:
    """Fashion-MNIST (Xiao et al. 2017), 60,000 / 10,000 gray images of 28x28 in 10 classes."""
    return _load("FashionMNIST", root, "FashionMNIST/raw", download, _gray)


def emnist_letters(root: Path | str = "data", download: bool = True) -> TrainTest:
    """The letters of EMNIST (Cohen et al. 2017), 124,800 / 20,800 images of 28x28, upright."""
    return _load("EMNIST", root, "EMNIST/raw", download, _letters, split="letters")


def emnist_letters_aj(root: Path | str = "data", download: bool = True) -> TrainTest:
    """EMNIST-L of FedDyn and FedSSG: the letters a to j, 48,000 / 8,000 images in 10 classes."""

    def read(raw: Any) -> Split:
        x, y, classes = _letters(raw)
        return x[y < 10], y[y < 10], classes[:10]

    return _load("EMNIST", root, "EMNIST/raw", download, read, split="letters")


def cifar10(root: Path | str = "data", download: bool = True) -> TrainTest:
    """CIFAR-10 (Krizhevsky 2009), 50,000 / 10,000 images of 32x32, as in FL-Simulator."""
    mean, std = (0.491, 0.482, 0.447), (0.247, 0.243, 0.262)
    return _load("CIFAR10", root, "cifar-10-batches-py", download, _color, mean, std)


def cifar100(root: Path | str = "data", download: bool = True) -> TrainTest:
    """CIFAR-100 with its 100 fine classes, otherwise as `cifar10`."""
    mean, std = (0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)
    return _load("CIFAR100", root, "cifar-100-python", download, _color, mean, std)


def svhn(root: Path | str = "data", download: bool = True) -> TrainTest:
    """SVHN, cropped digits (Netzer et al. 2011), 73,257 / 26,032 images of 32x32, as in FedSOL."""
    mean, std = (0.4376821, 0.4437697, 0.47280442), (0.19803012, 0.20101562, 0.19703614)
    folder = Path(root) / "SVHN"  # torchvision gives every other data set a folder itself

    def read(raw: Any) -> Split:
        return torch.from_numpy(raw.data), torch.from_numpy(raw.labels).long(), DIGITS

    parts = {"split": "train"}, {"split": "test"}
    return _load("SVHN", folder, "", download, read, mean, std, parts)


def pathmnist(root: Path | str = "data") -> TrainTest:
    """PathMNIST of MedMNIST v2 (Yang et al. 2023), 100,000 / 7,180 images of 28x28 in 9 classes.

    The file is `root/pathmnist.npz`. As in FedSOL, validation images are training images, and mean
    and standard deviation are 0.5.
    """
    return _med_mnist(root, "pathmnist", PATH_CLASSES, channels=3)


@checked
def tissuemnist(root: Path | str = "data", channels: PositiveInt = 3) -> TrainTest:
    """TissueMNIST, 189,106 / 47,280 gray images of 28x28 in 8 classes, otherwise as `pathmnist`.

    Args:
        root: The folder that holds `tissuemnist.npz`.
        channels: Copies of the gray channel; FedSOL has 3.
    """
    return _med_mnist(root, "tissuemnist", TISSUE_CLASSES, channels)


def _gray(raw: Any) -> Split:
    return raw.data[:, None], raw.targets, tuple(raw.classes)


def _letters(raw: Any) -> Split:
    # stored transposed, and labeled from 1
    return raw.data.transpose(1, 2)[:, None].contiguous(), raw.targets - 1, LETTERS


def _color(raw: Any) -> Split:
    x = torch.from_numpy(raw.data).permute(0, 3, 1, 2).contiguous()
    return x, torch.tensor(raw.targets), tuple(raw.classes)


def _load(
    name: str,
    root: Path | str,
    folder: str,
    download: bool,
    read: Callable[[Any], Split],
    mean: tuple[float, ...] = (),
    std: tuple[float, ...] = (),
    parts: Sequence[Mapping[str, Any]] = ({"train": True}, {"train": False}),
    **options: str,
) -> TrainTest:
    """Both parts of a torchvision data set, which `parts` of its arguments name."""
    from torchvision import datasets

    make = partial(getattr(datasets, name), root, download=download, **options)
    try:
        train, test = (read(make(**part)) for part in parts)
    except (RuntimeError, OSError) as error:
        reason = f"not downloaded ({error})" if download else "downloading is off"
        raise UserError(
            f"{name} is not complete in {Path(root) / folder}, {reason}: "
            "copy the folder from elsewhere, or name its parent with --data-dir DIR"
        ) from error
    return _normalized(train, test, mean, std)


def _normalized(
    train: Split, test: Split, mean: tuple[float, ...] = (), std: tuple[float, ...] = ()
) -> TrainTest:
    """Both data sets, normalized by `mean` and `std`, by default those of the training pixels."""
    if not mean:
        mean, std = mean_and_std(pixel_moments(train[0]))
    return DeviceDataset(*train, mean, std), DeviceDataset(*test, mean, std)


def _med_mnist(root: Path | str, name: str, classes: tuple[str, ...], channels: int) -> TrainTest:
    path = Path(root) / f"{name}.npz"
    if not path.is_file():
        url = f"{MEDMNIST}/{name}.npz"
        raise UserError(f"there is no {path}: download {url}, and give its folder as --data-dir")
    parts, half = list[DeviceDataset](), (0.5,) * channels
    with open(path, "rb") as file, np.load(file, allow_pickle=False) as content:
        for names in (("train", "val"), ("test",)):
            x, y = (
                torch.from_numpy(np.concatenate([content[f"{n}_{kind}"] for n in names]))
                for kind in ("images", "labels")
            )
            x = x.view(*x.shape[:3], -1).permute(0, 3, 1, 2).contiguous()
            x = x.expand(-1, channels, -1, -1)
            parts.append(DeviceDataset(x, y.long().flatten(), classes, half, half))
    return parts[0], parts[1]
