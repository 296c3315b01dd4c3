"""PathMNIST and TissueMNIST of MedMNIST v2 (Yang et al. 2023), read from its npz files.

Their functions download nothing. They raise a UserError if the file is missing.
"""

from pathlib import Path

import numpy as np
import torch

from fl_lightning.core.constraints import PositiveInt, checked
from fl_lightning.data.dataset import DeviceDataset, TrainTest
from fl_lightning.errors import UserError

URL = "https://zenodo.org/records/10519652/files"
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


def pathmnist(root: Path | str = "data") -> TrainTest:
    """PathMNIST, 100,000 / 7,180 color images of 28x28 in 9 classes, in `root/pathmnist.npz`.

    As in FedSOL, validation images are appended to the training images, and mean and standard
    deviation are 0.5.
    """
    return _load(root, "pathmnist", PATH_CLASSES, stored=3, channels=3)


@checked
def tissuemnist(root: Path | str = "data", channels: PositiveInt = 3) -> TrainTest:
    """TissueMNIST, 189,106 / 47,280 gray images of 28x28 in 8 classes, otherwise as `pathmnist`.

    Args:
        root: The folder that holds `tissuemnist.npz`.
        channels: Copies of the gray channel; FedSOL has 3.
    """
    return _load(root, "tissuemnist", TISSUE_CLASSES, stored=1, channels=channels)


def _load(
    root: Path | str, name: str, classes: tuple[str, ...], stored: int, channels: int
) -> TrainTest:
    path = Path(root) / f"{name}.npz"
    if not path.is_file():
        raise UserError(
            f"{path} does not exist: download {URL}/{name}.npz, and name its folder with "
            "--data-dir DIR"
        )
    parts, half = list[DeviceDataset](), (0.5,) * channels
    with open(path, "rb") as file, np.load(file, allow_pickle=False) as content:
        for names in (("train", "val"), ("test",)):
            x, y = (
                torch.from_numpy(np.concatenate([content[f"{n}_{kind}"] for n in names]))
                for kind in ("images", "labels")
            )
            x = x.view(*x.shape[:3], stored).permute(0, 3, 1, 2).contiguous()
            x = x.expand(-1, channels, -1, -1)
            parts.append(DeviceDataset(x, y.long().flatten(), classes, half, half))
    return parts[0], parts[1]
