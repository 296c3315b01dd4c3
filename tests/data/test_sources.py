"""The papers' data sets."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from image_files import write_images
from locations import SHARED
from PIL import Image
from torch import Tensor
from torchvision import transforms

from fl_lightning.data import domain_folder, sources

MNIST = SHARED / "data/mnist"
SIZES = {"train": 6, "val": 3, "test": 2}


def write_medmnist(path: Path, shape: tuple[int, ...], omit: str = "") -> dict[str, np.ndarray]:
    """A file as MedMNIST's: labels are a column of uint8."""
    g, stored = np.random.default_rng(0), {}
    for split, n in SIZES.items():
        stored[f"{split}_images"] = g.integers(0, 256, (n, *shape), dtype=np.uint8)
        stored[f"{split}_labels"] = g.integers(0, 8, (n, 1), dtype=np.uint8)
    np.savez_compressed(path, **{name: x for name, x in stored.items() if name != omit})
    return stored


def test_pathmnist_merges_training_and_validation(tmp_path: Path):
    stored = write_medmnist(tmp_path / "pathmnist.npz", (4, 4, 3))
    train, test = sources.pathmnist(tmp_path)
    assert (len(train), len(test), train.shape) == (9, 2, (3, 4, 4))
    assert (len(train.classes), train.classes[7]) == (9, "cancer-associated stroma")
    merged = np.concatenate([stored["train_images"], stored["val_images"]])
    assert np.array_equal(train.x.numpy(), merged.transpose(0, 3, 1, 2))
    assert train.y.tolist() == [*stored["train_labels"].flat, *stored["val_labels"].flat]
    assert test.y.tolist() == [*stored["test_labels"].flat]
    expected = torch.from_numpy(stored["test_images"]).permute(0, 3, 1, 2) / 127.5 - 1
    torch.testing.assert_close(test.inputs(torch.arange(2)), expected)


def test_tissuemnist_is_gray_and_repeated(tmp_path: Path):
    stored = write_medmnist(tmp_path / "tissuemnist.npz", (4, 4))
    train, test = sources.tissuemnist(tmp_path)
    assert (train.shape, test.shape, len(train.classes)) == ((3, 4, 4), (3, 4, 4), 8)
    x = train.inputs(torch.tensor([8, 0]))
    pixels = np.stack([stored["val_images"][2], stored["train_images"][0]])
    expected = torch.from_numpy(pixels) / 127.5 - 1
    for channel in x.unbind(1):
        torch.testing.assert_close(channel, expected)
    gray, _ = sources.tissuemnist(tmp_path, channels=1)
    torch.testing.assert_close(gray.inputs(torch.tensor([8, 0])), expected[:, None])
    with pytest.raises(ValueError, match="channels of tissuemnist"):
        sources.tissuemnist(tmp_path, channels=0)


def test_mnist_has_three_equal_channels_or_plain_pixels_when_asked(tmp_path: Path, monkeypatch):
    g = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (5, 28, 28), generator=g, dtype=torch.uint8)
    raw = SimpleNamespace(data=pixels, targets=torch.arange(5), classes=list("0123456789"))
    monkeypatch.setattr("torchvision.datasets.MNIST", lambda root, train, download: raw)
    gray, _ = sources.mnist(tmp_path)
    train, test = sources.mnist(tmp_path, channels=3)
    assert (gray.shape, train.shape, test.shape) == ((1, 28, 28), (3, 28, 28), (3, 28, 28))
    index = torch.tensor([4, 2])
    assert torch.equal(train.inputs(index), gray.inputs(index).repeat(1, 3, 1, 1))
    assert train.inputs(index).is_contiguous(memory_format=torch.channels_last)
    plain, _ = sources.mnist(tmp_path, standardize=False)
    torch.testing.assert_close(plain.inputs(index), pixels[index, None] / 255)


@pytest.mark.parametrize("place", ["", "CINIC-10"])
def test_cinic10_is_two_of_its_three_folders_normalized_as_in_fedsol(tmp_path: Path, place: str):
    folders = [f"{part}/{name}" for part in ("train", "valid", "test") for name in ("cat", "dog")]
    write_images(tmp_path / place, folders, each=2, size=(6, 6))
    train, test = sources.cinic10(tmp_path)
    assert (len(train), len(test), train.shape, train.classes) == (4, 4, (3, 6, 6), ("cat", "dog"))
    stored = np.asarray(Image.open(tmp_path / place / "test/dog/1.png")) / 255
    mean, std = [0.47889522, 0.47227842, 0.43047404], [0.24205776, 0.23828046, 0.25874835]
    x = test.inputs(torch.tensor([3]))[0].permute(1, 2, 0).numpy()
    np.testing.assert_allclose(x, (stored - mean) / std, atol=1e-5)
    assert len(list((tmp_path / place / ".cache").iterdir())) == 1


OFFICE = ["Art", "Clipart", "Product", "Real World"]
DOMAINS = ["clipart", "infograph", "painting", "quickdraw", "real", "sketch"]


@pytest.mark.parametrize(
    ("source", "names", "folder"),
    [(sources.office_home, OFFICE, "OfficeHome"), (sources.domain_net, DOMAINS, "")],
)
@pytest.mark.parametrize("held_out", [0, 2])
def test_a_domain_is_held_out_and_the_others_are_in_order(
    source: Callable[..., Any], names: list[str], folder: str, held_out: int, tmp_path: Path
):
    write_images(tmp_path / folder, [f"{name}/{label}" for name in names for label in "ab"], each=5)
    (tmp_path / folder / "splits").mkdir()  # not one of the domains
    train, test = source(tmp_path, names[held_out], size=4)
    assert (train.classes, train.shape) == (("a", "b"), (3, 4, 4))
    assert train.domain_names == tuple(names)
    others = [number for number in range(len(names)) if number != held_out]
    assert train.domains.tolist() == [number for number in others for _ in range(10)]
    assert test.domains.tolist() == [held_out] * 10
    assert train.mean == (0.485, 0.456, 0.406)
    assert test.std == (0.229, 0.224, 0.225)


def test_the_images_of_a_domain_are_the_same_wherever_it_is(tmp_path: Path):
    write_images(tmp_path, ["a/x", "b/x", "c/x", "d/x"], each=3)
    whole = torch.cat([domain_folder(tmp_path, name)[1].x for name in "abcd"])
    for number, name in enumerate("abcd"):
        train, _ = domain_folder(tmp_path, name)
        assert torch.equal(train.x, torch.cat([whole[: 3 * number], whole[3 * number + 3 :]]))
        mean = train.inputs(torch.arange(9)).mean((0, 2, 3))
        torch.testing.assert_close(mean, torch.zeros(3), atol=1e-5, rtol=0)
    train, _ = domain_folder(tmp_path, "c", domains=("d", "c"))
    assert train.domain_names == ("d", "c")
    assert torch.equal(train.x, whole[9:])


def test_fedlesams_images_are_scaled_to_256_and_cut_to_224(tmp_path: Path):
    write_images(tmp_path, [f"{domain}/Bed" for domain in OFFICE], each=1, size=(640, 512))
    train, test = sources.office_home(tmp_path, "Art")
    assert train.shape == (3, 224, 224)
    scale = transforms.Compose([transforms.Resize(256), transforms.CenterCrop(224)])
    expected = np.asarray(scale(Image.open(tmp_path / "Art/Bed/0.png")), dtype=np.int16)
    # the outermost pixels are scaled without what has been cut off
    difference = (test.x[0].numpy() - expected.transpose(2, 0, 1))[:, 1:-1, 1:-1]
    assert np.abs(difference).max() <= 1


def test_missing_data_and_unknown_domains_are_named(tmp_path: Path):
    with pytest.raises(ValueError, match=r"/pathmnist\.npz.*zenodo\.org.*--data-dir"):
        sources.pathmnist(tmp_path)
    with pytest.raises(ValueError, match=r"MNIST is not complete .*MNIST/raw.*--data-dir"):
        sources.mnist(tmp_path, download=False)
    with pytest.raises(ValueError, match=r"/CINIC-10 nor .*datashare.*--data-dir"):
        sources.cinic10(tmp_path)
    with pytest.raises(ValueError, match=r"OfficeHome.*Art, Clipart, .*hemanthdv"):
        sources.office_home(tmp_path, "Art")
    write_images(tmp_path, [f"{domain}/bee" for domain in DOMAINS])
    with pytest.raises(ValueError, match=r"'Real'.* clipart, .* sketch"):
        sources.domain_net(tmp_path, "Real", size=4)
    with pytest.raises(ValueError, match="crop of domain_folder"):
        sources.domain_net(tmp_path, "real", size=4, crop=0.0)
    with pytest.raises(ValueError, match=r"crop is 0\.5 and size is None"):
        domain_folder(tmp_path, "real", crop=0.5)
    with pytest.raises(ValueError, match="at least two"):
        domain_folder(tmp_path, "real", domains=("real",))


def assert_normalized(x: Tensor, tolerance: float) -> None:
    assert abs(x.mean()) < tolerance
    assert abs(x.std() - 1) < tolerance


def test_digits_are_split_class_by_class():
    train, test = sources.digits()
    assert (len(train), len(test)) == (1437, 360)
    assert train.shape == (1, 8, 8)
    assert train.x.max() == 255
    share = test.y.bincount() / (train.y.bincount() + test.y.bincount())
    assert (share - 0.2).abs().max() < 0.01
    assert_normalized(train.inputs(torch.arange(len(train))), 1e-3)


def test_emnist_letters_are_upright_and_labeled_from_zero(tmp_path: Path):
    raw = tmp_path / "EMNIST/raw"
    raw.mkdir(parents=True)
    pixels = np.random.default_rng(0).integers(0, 256, (52, 4, 4), dtype=np.uint8)
    labels = np.arange(52, dtype=np.uint8) % 26 + 1
    for half in ("train", "test"):
        for kind, array in (("images-idx3", pixels), ("labels-idx1", labels)):
            header = b"".join(n.to_bytes(4, "big") for n in (0x800 + array.ndim, *array.shape))
            (raw / f"emnist-letters-{half}-{kind}-ubyte").write_bytes(header + array.tobytes())
    train, _ = sources.emnist_letters(tmp_path)
    assert train.y.tolist() == [*range(26), *range(26)]
    assert (train.classes[0], train.classes[25]) == ("a", "z")
    assert np.array_equal(train.x[30, 0].numpy(), pixels[30].T)
    train, test = sources.emnist_letters_aj(tmp_path)
    assert train.y.tolist() == test.y.tolist() == [*range(10), *range(10)]
    assert train.classes == tuple("abcdefghij")
    assert train.inputs(torch.arange(20)).mean().item() == pytest.approx(0, abs=1e-5)


def test_color_images_become_channels_first(tmp_path: Path, monkeypatch):
    pixels = np.random.default_rng(0).integers(0, 256, (4, 32, 32, 3), dtype=np.uint8)

    def fake(root, train, download):
        return SimpleNamespace(data=pixels, targets=[3, 1, 0, 9], classes=list("abcdefghij"))

    monkeypatch.setattr("torchvision.datasets.CIFAR10", fake)
    train, _ = sources.cifar10(tmp_path)
    assert np.array_equal(train.x.numpy(), pixels.transpose(0, 3, 1, 2))
    assert train.y.tolist() == [3, 1, 0, 9]


def test_mnist_opens_an_existing_folder():
    if not MNIST.exists():
        pytest.skip(f"there is no MNIST in {MNIST}")
    train, test = sources.mnist(MNIST)
    assert (len(train), len(test), train.shape) == (60_000, 10_000, (1, 28, 28))
    assert_normalized(train.inputs(torch.arange(0, 60_000, 7)), 0.01)
