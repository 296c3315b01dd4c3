"""PathMNIST and TissueMNIST of MedMNIST v2 (Yang et al. 2023), read from its npz files."""

from pathlib import Path
from zipfile import BadZipFile
from zlib import error as ZlibError

import numpy as np
import torch

from fl_lightning.data.dataset import DeviceDataset, repeated

URL = "https://zenodo.org/records/10519652/files"
KEYS = [f"{split}_{what}" for split in ("train", "val", "test") for what in ("images", "labels")]
# what numpy and torch raise on a file that is broken somewhere or is something else
DAMAGE = (
    OSError,
    ValueError,
    TypeError,
    KeyError,
    EOFError,
    AttributeError,
    RuntimeError,
    BadZipFile,
    ZlibError,
)
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


def pathmnist(root: Path | str = "data") -> tuple[DeviceDataset, DeviceDataset]:
    """PathMNIST, 100,000 / 7,180 colour images of 28x28 in 9 classes, in `root/pathmnist.npz`.

    As in FedSOL, training and validation images are merged, in this order, and mean and standard
    deviation are 0.5.

    Raises:
        FileNotFoundError: the file is not there; nothing is downloaded.
        ValueError: it is damaged or something else.
    """
    return _merged(root, "pathmnist", PATH_CLASSES, colours=3, channels=3)


def tissuemnist(
    root: Path | str = "data", channels: int = 3
) -> tuple[DeviceDataset, DeviceDataset]:
    """TissueMNIST, 189,106 / 47,280 gray images of 28x28 in 8 classes, in `root/tissuemnist.npz`; as `pathmnist`.

    Args:
        root: the folder.
        channels: the gray images are repeated so many times, 3 in FedSOL.

    Raises:
        FileNotFoundError: the file is not there; nothing is downloaded.
        ValueError: it is damaged or something else.
    """
    return _merged(root, "tissuemnist", TISSUE_CLASSES, colours=1, channels=channels)


def _merged(
    root: Path | str, name: str, classes: tuple[str, ...], colours: int, channels: int
) -> tuple[DeviceDataset, DeviceDataset]:
    """Training and validation together, and the test; stored with so many colours and shown with so many channels."""
    path = Path(root) / f"{name}.npz"
    if not path.is_file():
        raise FileNotFoundError(
            f"looked for {path}, which is not there; download {URL}/{name}.npz into that folder, or pass "
            "--data-dir DIR with the folder that holds it."
        )
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as stored:
            arrays = {key: torch.from_numpy(stored[key]) for key in KEYS}
        x = {
            key: arrays[key].view(*arrays[key].shape[:3], colours)
            for key in KEYS
            if key.endswith("images")
        }
    except DAMAGE as error:
        raise ValueError(
            f"{path} is damaged or is not MedMNIST's ({error}); download {URL}/{name}.npz anew."
        ) from error

    def part(*splits: str) -> DeviceDataset:
        images = (
            torch.cat([x[f"{split}_images"] for split in splits]).permute(0, 3, 1, 2).contiguous()
        )
        y = torch.cat([arrays[f"{split}_labels"] for split in splits]).long().flatten()
        return DeviceDataset(
            repeated(images, channels), y, classes, (0.5,) * channels, (0.5,) * channels
        )

    return part("train", "val"), part("test")
