"""Data sets, the batches of a visit, and their augmentation."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor
from torchvision.transforms.v2.functional import crop, normalize, pad

from fl_lightning.core.randomness import generator
from fl_lightning.data import Batches, ClientData, CropFlip, DeviceDataset, Partition, schemes


def images(n: int = 60, channels: int = 3, size: int = 8) -> DeviceDataset:
    g = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (n, channels, size, size), generator=g, dtype=torch.uint8)
    mean, std = (0.5, 0.4, 0.3)[:channels], (0.2, 0.25, 0.3)[:channels]
    return DeviceDataset(x, torch.arange(n) % 4, tuple("abcd"), mean, std)


def numbered(sizes: list[int], **options) -> ClientData:
    """Clients of the given sizes; the only feature of a sample is its position."""
    n = sum(sizes)
    data = DeviceDataset(torch.arange(n).double(), torch.zeros(n).long(), ("a",))
    partition = Partition(torch.arange(n), torch.tensor([0, *sizes]).cumsum(0))
    return ClientData(data, partition, **options)


def whole_visit(data: ClientData, client: int, round: int) -> Tensor:
    return torch.cat([x for x, _ in data.visit(client, round)])


def test_images_of_one_sample_keep_their_own_shapes():
    images = {"rgb": RGB + 51, "mask": RGB[:, :1] + 255, "small": RGB[..., :2] + 102}
    data = DeviceDataset(images, torch.zeros(2))
    for name, x in data.inputs(torch.arange(2)).items():
        torch.testing.assert_close(x, images[name].float() / 255)
    with pytest.raises(ValueError, match="one for each channel"):
        DeviceDataset(images, torch.zeros(2), mean=(0.5,) * 3, std=(0.5,) * 3)


FEATURES = torch.zeros(2, 2)
RGB = torch.zeros(2, 3, 4, 4, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("x", "y", "options", "message"),
    [
        (FEATURES, [0, 2], {}, r"0 to 2, but there are 2 names"),
        (FEATURES, [-1, 1], {}, r"-1 to 1"),
        (FEATURES, [0, 1, 1], {}, "each of 2 samples"),
        (FEATURES, [0.0, 1.0], {}, "int64"),
        ((FEATURES, FEATURES[:1]), [0, 1], {}, "each of 2 samples"),
        ({"a": FEATURES, "b": [1, 2]}, [0, 1], {}, "int"),
        (FEATURES, [0, 1], {"mean": (0.5,), "std": (0.5,)}, "none for features"),
        (FEATURES.to_sparse(), [0, 1], {}, "dense"),
        (FEATURES, [0, 1], {"domains": torch.tensor([0, 1])}, "domains"),
        (FEATURES, [0, 1], {"classes": (0, 1)}, r"names of y are \(0, 1\)"),
        (FEATURES, [0, 1], {"classes": ("a", "a")}, "names of y"),
        (RGB, [0, 1], {"mean": (0.5,), "std": (0.5,)}, "one for each channel"),
        (RGB, [0, 1], {"mean": (0.5,) * 3, "std": (0.5, 0.5, 0.0)}, "positive"),
    ],
)
def test_data_that_does_not_fit_together_is_refused(
    x: Tensor, y: list, options: dict, message: str
):
    with pytest.raises(ValueError, match=message):
        DeviceDataset(x, torch.tensor(y), **{"classes": ("a", "b"), **options})


def test_batches_cover_every_epoch_exactly_once_with_a_short_last_batch():
    batches = numbered([3, 23], batch_size=10, epochs=2).visit(1, round=4)
    assert batches.sizes == [10, 10, 3, 10, 10, 3]
    seen = [x for x, _ in batches]
    first, second = torch.cat(seen[:3]), torch.cat(seen[3:])
    assert len(batches) == 6
    assert torch.equal(first.sort().values, torch.arange(3.0, 26.0, dtype=torch.float64))
    assert torch.equal(second.sort().values, first.sort().values)
    assert not torch.equal(first, second)


@pytest.mark.parametrize("together", [20, 33, 10_000])
def test_batches_made_together_are_those_made_one_by_one(together: int):
    augment, sizes = CropFlip(cutout=3), [16, 16, 8, 16, 16, 8]
    index = torch.randperm(40, generator=torch.Generator().manual_seed(0)).repeat(2)
    draws = augment.draw(len(index), torch.Generator().manual_seed(1))
    one, several = (Batches(images(40), index, sizes, (augment, draws), n) for n in (1, together))
    for k in (0, 1, 2, 3, 4, 5, 2, -1, 0):
        for mine, theirs in zip(one[k], several[k], strict=True):
            assert torch.equal(mine, theirs)
            assert mine.stride() == theirs.stride()
    with pytest.raises(IndexError):
        several[6]


@pytest.mark.parametrize(
    ("options", "steps"),
    [({"epochs": 0.5}, 2), ({"epochs": 0.01}, 1), ({"epochs": 1.8}, 5), ({"steps": 8}, 8)],
)
def test_number_of_steps(options: dict, steps: int):
    data = numbered([23], batch_size=10, **options)
    batches = data.visit(0, 0)
    assert data.num_steps(0) == steps == len(batches)
    assert sum(batches.sizes) == sum(len(y) for _, y in batches)
    assert batches.sizes == ([10, 10, 3] * 3)[:steps]


@pytest.mark.parametrize("drawn", ["order", "augmentation"])
@pytest.mark.parametrize(
    "other", [(1, 0, 0), (0, 1, 0), (0, 0, 1)], ids=["client", "round", "seed"]
)
def test_order_and_augmentation_are_each_of_this_client_round_and_seed(
    drawn: str, other: tuple[int, int, int]
):
    train, equal = images(40), Partition.from_lists([range(40), range(40)])
    options = {
        "batch_size": 8,
        "shuffle": drawn == "order",
        "augment": CropFlip() if drawn == "augmentation" else None,
    }

    def visit(client: int, round: int, seed: int) -> Tensor:
        return whole_visit(ClientData(train, equal, seed=seed, **options), client, round)

    assert torch.equal(visit(0, 0, 0), visit(0, 0, 0))
    assert not torch.equal(visit(0, 0, 0), visit(*other))


def test_order_does_not_depend_on_augmentation():
    train, partition = images(40), Partition.from_lists([range(40)])
    plain, augmented = (
        whole_visit(ClientData(train, partition, batch_size=8, augment=augment), 0, 0)
        for augment in (None, CropFlip(crop=0, flip=0))
    )
    assert torch.equal(plain, augmented)


def test_the_digest_names_samples_labels_normalization_and_who_holds_what():
    def digest(
        flip: bool = False, lists: tuple = ([0, 1], [2, 3]), seed: int = 0, **changed
    ) -> str:
        x, y = torch.zeros(4, 1, 2, 2, dtype=torch.uint8), torch.tensor([0, 1, 1, 0])
        given = {"classes": ("a", "b"), "mean": (0.5,), "std": (0.2,), **changed}
        data = DeviceDataset(x, 1 - y if flip else y, **given)
        return ClientData(data, Partition.from_lists(lists), seed=seed).digest

    changes = [{}, {"flip": True}, {"classes": ("a", "c")}, {"mean": (0.4,)}, {"std": (0.3,)}]
    changes += [{"lists": ([0, 1, 2], [3])}, {"lists": ([0, 2], [1, 3])}]
    assert len({digest(**change) for change in changes}) == 7
    assert digest() == digest(seed=1)
    half = torch.tensor([[0.0, 1.0], [2.0, 3.0]], dtype=torch.bfloat16)
    assert DeviceDataset(half, half).digest != DeviceDataset(half, half.flip(0)).digest
    every_other = DeviceDataset(torch.zeros(4, 2)[::2], torch.arange(4)[::2])
    assert every_other.digest == DeviceDataset(torch.zeros(2, 2), torch.tensor([0, 2])).digest


@pytest.mark.parametrize(
    ("lists", "options", "message"),
    [
        ([[0, 12]], {}, "sample 12, but the data set has 12"),
        ([[0], [], [1], []], {}, r"2 of 4 clients hold no samples \(client 1, 3\)"),
        ([[0]], {"batch_size": 0}, "batch_size"),
    ],
)
def test_impossible_client_data_is_refused(lists: list, options: dict, message: str):
    with pytest.raises(ValueError, match=message):
        ClientData(images(12), Partition.from_lists(lists), **options)


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        ((8, 6, 3), (), r"\(channels, height, width\), but .*\(8, 6, 3\)"),
        ((16, 16, 13), (), r"\(16, 16, 13\)"),
        ((8, 6), (), r"but samples have shape \(8, 6\)"),
        ((3, 8, 6), (8, 6), "others, such as masks"),
    ],
)
def test_augmentation_of_other_axes_or_without_the_masks_is_refused(
    x: tuple, y: tuple, message: str
):
    data = DeviceDataset(torch.zeros(4, *x), torch.zeros(4, *y))
    with pytest.raises(ValueError, match=message):
        ClientData(data, Partition.from_lists([range(4)]), augment=CropFlip())


def test_samples_that_do_not_fit_the_device_stay_and_their_batches_are_copied(monkeypatch, capsys):
    data, to = images(), Tensor.to

    def full(tensor: Tensor, *args, **kwargs) -> Tensor:
        if args[0] == "meta" and len(tensor) == len(data):
            raise torch.OutOfMemoryError("out of memory")
        return to(tensor, *args, **kwargs)

    monkeypatch.setattr(Tensor, "to", full)
    moved = data.to("meta")
    assert "60 samples (0.0 GB) do not fit the memory of meta" in capsys.readouterr().out
    assert (moved.x.device.type, moved.device.type) == ("cpu", "meta")
    clients = ClientData(moved, Partition(torch.arange(60), torch.tensor([0, 60])), batch_size=20)
    for x, y in clients.visit(0, 0):
        assert (x.device.type, y.device.type, len(x)) == ("meta", "meta", 20)


def test_an_epoch_leaves_out_a_sample_that_would_be_a_batch_of_one():
    data = numbered([7, 6], batch_size=3, epochs=2, single_batches=False)
    assert [data.visit(client, 0).sizes for client in (0, 1)] == [[3, 3, 3, 3], [3, 3, 3, 3]]
    epochs = torch.cat([x for x, _ in data.visit(0, 0)]).view(2, 6)
    assert all(len({*epoch.tolist()}) == 6 for epoch in epochs)
    whole = torch.cat([x for x, _ in numbered([7], batch_size=3).visit(0, 0)])
    assert epochs[0].equal(whole[:6])
    assert data.visit(1, 0)[0][0].equal(numbered([7, 6], batch_size=3).visit(1, 0)[0][0])


NO_SHIFT = torch.zeros(1, 1, 1)
"""A black pixel of images that are not normalized."""


@pytest.mark.parametrize("side", [0, 3, 4])
@pytest.mark.parametrize(("mode", "edge"), [("zero", 3), ("reflect", 3), ("zero", 0)])
def test_augmentation_equals_padding_cropping_flipping_and_cutting_one_by_one(
    mode: str, edge: int, side: int
):
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
def test_black_borders_are_those_of_torchvision_before_normalization(edge: int):
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


def test_holes_have_the_mean_color():
    augment = CropFlip(padding=0, flip=0.0, cutout=4)
    gray = torch.full((9, 3, 8, 8), 60, dtype=torch.uint8)
    data = DeviceDataset(gray, torch.zeros(9).long(), ("a",), (0.5,) * 3, (0.1,) * 3)
    clients = ClientData(data, Partition.from_lists([range(9)]), augment=augment)
    x = torch.cat([x for x, _ in clients.visit(0, 0)])
    in_hole = x == 0  # once normalized
    assert torch.allclose(x[~in_hole], torch.tensor((60 / 255 - 0.5) / 0.1))
    assert in_hole.any((1, 2, 3)).all()


def test_a_visit_does_not_depend_on_what_was_called_before():
    train = images(120)
    partition = schemes.iid(train.y, 4, 0)
    make = partial(ClientData, batch_size=7, epochs=2, augment=CropFlip(crop=0.5))
    forth, back = make(train, partition), make(train, partition)
    calls = [(client, round) for round in range(2) for client in range(4)]
    state = torch.get_rng_state()
    first = {call: whole_visit(forth, *call) for call in calls}
    for call in reversed(calls):
        assert torch.equal(whole_visit(back, *call), first[call])
    assert torch.equal(state, torch.get_rng_state())
