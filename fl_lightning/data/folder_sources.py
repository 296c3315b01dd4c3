"""Published data sets that are folders of images: CINIC-10, OfficeHome and DomainNet.

Their functions raise a UserError if the folders are missing, and as
`image_folder` and `domain_folder` do.
"""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal, get_args

from typing_extensions import Doc

from fl_lightning.core.constraints import PositiveInt
from fl_lightning.data.dataset import TrainTest
from fl_lightning.data.image_folder import Cache, Crop, Root, domain_folder, image_folder
from fl_lightning.errors import UserError

IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Mean and standard deviation that pretrained models expect."""
CINIC10 = (0.47889522, 0.47227842, 0.43047404), (0.24205776, 0.23828046, 0.25874835)
Side = Annotated[PositiveInt, Doc("Pixels of a side.")]
OfficeHome = Literal["Art", "Clipart", "Product", "Real World"]
DomainNet = Literal["clipart", "infograph", "painting", "quickdraw", "real", "sketch"]


def cinic10(root: Root = "data", cache: Cache = None) -> TrainTest:
    """CINIC-10 (Darlow et al. 2018), 90,000 / 90,000 images of 32x32 in 10 classes, as in FedSOL.

    The folders `train` and `test` lie in `root/CINIC-10` or in `root` itself; `valid` is not used.
    Images are decoded once, as by `image_folder`.
    """
    url = "https://datashare.ed.ac.uk/handle/10283/3192"
    folder = _find("CINIC-10", root, ("train", "test"), url)
    return _normalized(image_folder(folder, cache=cache), *CINIC10)


def office_home(
    root: Root,
    test_domain: Annotated[OfficeHome, Doc("The domain held out for testing.")],
    size: Side = 224,
    cache: Cache = None,
    crop: Crop = 0.875,
) -> TrainTest:
    """OfficeHome (Venkateswara et al. 2017), 15,588 images, 65 classes, 4 domains, one held out.

    The domains' folders lie in `root/OfficeHome` or in `root` itself. Images are resized to 256
    pixels, cropped to 224 and normalized as ImageNet, as in FedLESAM, which has 3 or 30 clients
    with `--partition by_domain`.
    """
    domains, url = get_args(OfficeHome), "https://www.hemanthdv.org/officeHomeDataset.html"
    folder = _find("OfficeHome", root, domains, url)
    return _normalized(domain_folder(folder, test_domain, size, cache, crop, domains), *IMAGENET)


def domain_net(
    root: Root,
    test_domain: Annotated[DomainNet, Doc("The domain held out for testing.")],
    size: Side = 224,
    cache: Cache = None,
    crop: Crop = 0.875,
) -> TrainTest:
    """DomainNet (Peng et al. 2019), 586,575 images, 345 classes, 6 domains, one held out.

    Otherwise as `office_home`, in `root/DomainNet`; FedLESAM has 5 or 50 clients. The decoded
    images take 88 GB at 224 pixels, 7 GB at 64.
    """
    domains, url = get_args(DomainNet), "http://ai.bu.edu/M3SDA"
    folder = _find("DomainNet", root, domains, url)
    return _normalized(domain_folder(folder, test_domain, size, cache, crop, domains), *IMAGENET)


def _normalized(split: TrainTest, mean: tuple[float, ...], std: tuple[float, ...]) -> TrainTest:
    train, test = split
    return replace(train, mean=mean, std=std), replace(test, mean=mean, std=std)


def _find(name: str, root: Path | str, parts: tuple[str, ...], url: str) -> Path:
    """`root/name` or `root`, whichever holds all the parts."""
    for folder in (Path(root) / name, Path(root)):
        if all((folder / part).is_dir() for part in parts):
            return folder
    raise UserError(
        f"neither {Path(root) / name} nor {root} holds the folders {', '.join(parts)}: "
        f"unpack {url} there, or name their folder with --data-dir DIR"
    )
