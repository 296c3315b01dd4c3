"""Crops, flips and holes."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torchvision.transforms.v2.functional import crop, normalize, pad

from fl_lightning.core.randomness import generator
from fl_lightning.data import ClientData, CropFlip, DeviceDataset, Partition

NO_SHIFT = torch.zeros(1, 1, 1)
"""A black pixel of images that are not normalized."""


@pytest.mark.parametrize("side", [0, 3, 4])
@pytest.mark.parametrize(("mode", "edge"), [("zero", 3), ("reflect", 3), ("zero", 0)])
def test_augmentation_equals_padding_cropping_flipping_and_cutting_one_by_one(mode, edge, side):
    augment = CropFlip(padding=edge, crop=0.5, mode=mode, cutout=side)
    x = 1 + torch.rand(50, 3, 8, 6)
    draws = augment.draw(50, torch.Generator().manual_seed(1))
    uncut = replace(augment, cutout=0).draw(50, torch.Generator().manual_seed(1))
    assert (uncut.shape, uncut.dtype, draws.dtype) == ((50, 3), torch.int16, torch.int16)
    assert torch.equal(draws[:, :3], uncut)
    pad = "reflect" if mode == "reflect" else "constant"
    cases = zip(x.numpy(), draws.tolist(), augment.apply(x, draws, NO_SHIFT).numpy(), strict=True)
    for image, (top, left, flip, *center), augmented in cases:
        padded = np.pad(image, ((0, 0), (edge, edge), (edge, edge)), pad)
        expected = padded[:, top : top + 8, left : left + 6].copy()
        expected = expected[:, :, ::-1] if flip else expected
        if side:  # the hole may hang over the border
            top, left = (c * n // 2**15 - side // 2 for c, n in zip(center, (8, 6), strict=True))
            expected[:, max(0, top) : top + side, max(0, left) : left + side] = 0
        np.testing.assert_array_equal(augmented, expected)


def test_augmentation_draws_follow_their_probabilities():
    draws = CropFlip(padding=4, crop=0.5, flip=0.25).draw(20_000, torch.Generator().manual_seed(0))
    assert draws[:, 2].double().mean().item() == pytest.approx(0.25, abs=0.02)
    still = (draws[:, :2] == 4).all(1).double().mean().item()
    assert still == pytest.approx(0.5 + 0.5 / 81, abs=0.02)
    assert draws[:, 0].unique().tolist() == list(range(9))
    never = CropFlip(crop=0, flip=0).draw(100, torch.Generator().manual_seed(0))
    assert torch.equal(never, torch.tensor([[4, 4, 0]] * 100, dtype=torch.int16))


@pytest.mark.parametrize("edge", [0, 2])
def test_black_borders_are_those_of_torchvision_before_normalization(edge):
    images = torch.randint(0, 256, (20, 3, 6, 5), dtype=torch.uint8)
    mean, std = (0.5, 0.4, 0.1), (0.2, 0.3, 0.4)
    data = DeviceDataset(images, torch.zeros(20).long(), ("a",), mean, std)
    augment = CropFlip(padding=edge, flip=0.0, mode="black")
    clients = ClientData(
        data, Partition.from_lists([range(20)]), augment=augment, batch_size=20, shuffle=False
    )
    ((augmented, _),) = clients.visit(0, 0)
    draws = augment.draw(20, generator(0, "augmentation", 0, 0))
    for image, (top, left, _), made in zip(images, draws.tolist(), augmented, strict=True):
        cropped = crop(pad(image, [edge]), top, left, 6, 5)
        torch.testing.assert_close(made, normalize(cropped / 255, [*mean], [*std]))


def test_holes_are_centred_on_every_pixel_alike():
    draws = CropFlip(padding=0, flip=0.0, cutout=1).draw(30_000, torch.Generator().manual_seed(0))
    augment = CropFlip(padding=0, flip=0.0, cutout=1)
    holes = augment.apply(torch.ones(30_000, 1, 5, 3), draws, NO_SHIFT) == 0
    assert (holes.sum((1, 2, 3)) == 1).all()
    share = holes.double().mean((0, 1)) * 15
    assert (share - 1).abs().max() < 0.1
