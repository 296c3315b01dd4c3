"""Folders of images, and of domains of images."""

from collections.abc import Callable
from errno import ENOSPC
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from image_files import write_images
from PIL import Image

from fl_lightning.data import image_folder

SPLITS = ["train/cat", "train/dog", "test/cat", "test/dog"]


def test_an_image_folder_is_read_in_order_and_normalized(tmp_path: Path):
    write_images(tmp_path, SPLITS)
    train, test = image_folder(tmp_path)
    assert train.classes == ("cat", "dog")
    assert train.y.tolist() == test.y.tolist() == [0, 0, 0, 1, 1, 1]
    stored = np.asarray(Image.open(tmp_path / "test/dog/1.png")).transpose(2, 0, 1)
    assert np.array_equal(test.x[4].numpy(), stored)
    x = train.inputs(torch.arange(6))
    torch.testing.assert_close(x.mean((0, 2, 3)), torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(x.std((0, 2, 3), correction=0), torch.ones(3), atol=1e-5, rtol=0)


def test_an_image_folder_is_decoded_once_and_anew_when_a_file_changes(tmp_path: Path, monkeypatch):
    write_images(tmp_path, SPLITS)
    opened: list[Path] = []
    open_image: Callable = Image.open
    monkeypatch.setattr(Image, "open", lambda path: opened.append(path) or open_image(path))
    first, _ = image_folder(tmp_path)
    assert opened
    opened.clear()
    again, _ = image_folder(tmp_path)
    assert not opened
    assert torch.equal(first.x, again.x)
    assert first.mean == again.mean
    Image.new("RGB", (5, 5), "red").save(tmp_path / "train/cat/0.png")
    changed, _ = image_folder(tmp_path)
    assert changed.x[0, :, 0, 0].tolist() == [255, 0, 0]


def test_images_are_brought_to_one_size_when_asked(tmp_path: Path):
    write_images(tmp_path, SPLITS)
    Image.new("L", (9, 7), 128).save(tmp_path / "train/dog/9.jpg")
    with pytest.raises(ValueError, match=r"9\.jpg has 9x7 pixels.*--data\.size"):
        image_folder(tmp_path)
    train, _ = image_folder(tmp_path, size=4, cache=tmp_path / "decoded")
    assert train.x.shape == (7, 3, 4, 4)
    assert (train.x[-1] == 128).all()
    assert len(list((tmp_path / "decoded").iterdir())) == 1


def test_an_image_that_cannot_be_read_is_named_and_nothing_is_left_in_the_cache(
    tmp_path: Path, monkeypatch
):
    write_images(tmp_path, SPLITS)
    broken = tmp_path / "train/dog/1.png"
    broken.write_bytes(broken.read_bytes()[:60])
    with pytest.raises(ValueError, match=r"train/dog/1\.png cannot be read"):
        image_folder(tmp_path)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1)
    with pytest.raises(ValueError, match=r"cat/0\.\w+ cannot be read .*pixels"):
        image_folder(tmp_path)
    assert not list((tmp_path / ".cache").iterdir())


@pytest.mark.parametrize("failing", ["torch.save", "pathlib.Path.open"])
def test_a_cache_that_cannot_be_written_is_named(failing: str, tmp_path: Path, monkeypatch):
    write_images(tmp_path, SPLITS)
    monkeypatch.setattr(failing, Mock(side_effect=OSError(ENOSPC, "No space left on device")))
    with pytest.raises(ValueError, match=r"/\.cache .*No space left.*--data\.cache"):
        image_folder(tmp_path)
    assert not list((tmp_path / ".cache").iterdir())


@pytest.mark.parametrize("mode", ["L", "1", "P", "LA", "RGBA", "PA", "CMYK"])
def test_images_of_other_modes_become_rgb(mode: str, tmp_path: Path):
    write_images(tmp_path, SPLITS, size=(2, 2))
    color = 255 if mode in ("L", "1", "LA") else (255, 0, 0)
    image = Image.new("L" if isinstance(color, int) else "RGB", (2, 2), color).convert(mode)
    if "A" in mode:
        image.putalpha(Image.new("L", (2, 2), 100))
    image.save(tmp_path / f"train/dog/9.{'tif' if mode in ('CMYK', 'PA') else 'png'}")
    train, _ = image_folder(tmp_path)
    assert train.x[-1, :, 0, 0].tolist() == [255] * 3 if color == 255 else [255, 0, 0]


@pytest.mark.parametrize("name", ["ramp.png", "ramp.tif", "ramp.pgm"])
def test_gray_images_of_16_bits_are_scaled(name: str, tmp_path: Path):
    kept = np.int32 if name == "ramp.pgm" else np.uint16  # Pillow 10.1 writes no other PGM
    ramp = np.arange(256, dtype=kept).reshape(16, 16) * 257
    for split in ("train", "test"):
        (tmp_path / split / "gray").mkdir(parents=True)
        Image.fromarray(ramp).save(tmp_path / split / "gray" / name)
    train, _ = image_folder(tmp_path)
    assert train.x[0].flatten(1).tolist() == [[*range(256)]] * 3
    Image.fromarray(ramp >> 4).save(tmp_path / "train/gray" / name)
    Image.fromarray(ramp >> 4).save(tmp_path / "test/gray" / name)
    with pytest.warns(UserWarning, match="no pixel is above 15 of 255"):
        image_folder(tmp_path, cache=tmp_path / "of 12 bits")
    for kind in (np.float32, np.int32):
        Image.fromarray((ramp // 257).astype(kind)).save(tmp_path / "train/gray/other.tif")
        with pytest.raises(ValueError, match=r"other\.tif .*16 bits"):
            image_folder(tmp_path)


@pytest.mark.parametrize("suffix", ["gif", "TIF", "tiff", "webp"])
def test_images_of_many_formats_are_read_and_other_files_named(suffix: str, tmp_path: Path):
    write_images(tmp_path, SPLITS)
    red = Image.new("RGB", (5, 5), "red")
    red.save(tmp_path / f"train/dog/9.{suffix}", lossless=True)
    assert image_folder(tmp_path)[0].x[-1, :, 0, 0].tolist() == [255, 0, 0]
    (tmp_path / "train/dog/9.heic").write_bytes(b"")
    with pytest.warns(UserWarning, match=r"train/dog.* 9\.heic"):
        assert len(image_folder(tmp_path)[0]) == 7


@pytest.mark.parametrize("suffix", ["png", "webp", "tif", "jpg"])
def test_images_are_turned_as_their_exif_orientation_says(suffix: str, tmp_path: Path):
    write_images(tmp_path, SPLITS, size=(16, 8))
    halves = Image.new("RGB", (16, 8), "red")
    halves.paste("blue", (0, 0, 8, 8))
    exif = halves.getexif()
    exif[0x0112] = 6  # turn it by 90 degrees clockwise
    turned = halves.transpose(Image.Transpose.ROTATE_90)
    options = {"quality": 100, "subsampling": 0} if suffix == "jpg" else {"lossless": True}
    turned.save(tmp_path / f"train/cat/9.{suffix}", exif=exif, **options)
    train, _ = image_folder(tmp_path)
    expected = torch.from_numpy(np.array(halves)).permute(2, 0, 1).int()
    assert (train.x[3] - expected).abs().max() <= 3


def test_a_missing_folder_or_image_is_named(tmp_path: Path):
    with pytest.raises(ValueError, match=r"nothing/train holds no folders.*/<class>"):
        image_folder(tmp_path / "nothing")
    write_images(tmp_path, ["train/cat", "test/cat", "test/cow"])
    with pytest.raises(ValueError, match="test/cow is a class without training images"):
        image_folder(tmp_path)
    (tmp_path / "train/cow").mkdir()
    with pytest.raises(ValueError, match="train/cow holds no images"):
        image_folder(tmp_path)
