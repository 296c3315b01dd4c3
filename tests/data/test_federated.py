"""Rows of any structure with their owners."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from fl_lightning import FederatedData, Partition, UserError, partitions
from fl_lightning.data import schemes

X = torch.arange(120.0).view(24, 5)
Y = torch.arange(24) % 3
OWNERS = torch.arange(24) % 4


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter(X)


class Samples(Dataset[Any]):
    """A map-style data set of what `sample(k)` gives."""

    def __init__(self, sample: Callable[[int], Any], number: int = 24) -> None:
        self.sample, self.number = sample, number

    def __len__(self) -> int:
        return self.number

    def __getitem__(self, k: int) -> Any:
        return self.sample(k)


class Duck:
    """Samples without a class of PyTorch and without an end, as a `DataLoader` takes them."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, k: int) -> Any:
        assert k < 24
        return X[k], int(Y[k])


def test_random_samples_are_warned_of_since_they_are_drawn_once():
    noisy = Samples(lambda k: (X[k] + torch.rand(5), 0))
    with pytest.warns(UserWarning, match="the samples of test differ"):
        data = FederatedData(Samples(lambda k: (X[k], 0)), noisy, clients=OWNERS)
    assert data.train[0].equal(X)


@pytest.mark.parametrize(
    "owners",
    [
        OWNERS,
        OWNERS.numpy(),
        OWNERS.tolist(),
        [*OWNERS],
        pandas.Series(OWNERS.numpy()),
        [[k for k in range(24) if k % 4 == owner] for owner in range(4)],
        [torch.arange(owner, 24, 4) for owner in range(4)],
        [range(owner, 24, 4) for owner in range(4)],
        Partition.from_owners(OWNERS, 4),
    ],
    ids=lambda owners: type(owners).__name__,
)
def test_owners_come_in_many_forms(owners: Any):
    data = FederatedData((X, Y), clients=owners)
    assert data.partition.digest == Partition.from_owners(OWNERS, 4).digest
    assert data.names == ("0", "1", "2", "3")
    assert (data.num_clients, data.rows, data.inputs) == (4, 24, 5)


def test_owners_are_named_and_sorted():
    data = FederatedData((X, Y), clients=["zoe", "adam", "mia"] * 8)
    assert data.names == ("adam", "mia", "zoe")
    assert data.partition[0].tolist() == list(range(1, 24, 3))
    numbers = FederatedData((X, Y), clients=[10, 9, 200] * 8)
    assert numbers.names == ("9", "10", "200")
    assert FederatedData((X, Y), clients=[b"\x02", b"\x01"] * 12).partition[1].tolist()[0] == 0


def test_a_column_of_owners_is_no_part_of_a_row():
    rows = {"image": X, "speaker": ["b", "a"] * 12, "label": Y}
    data = FederatedData(rows, {"image": X, "speaker": "ab" * 12, "label": Y}, clients="speaker")
    assert data.names == ("a", "b")
    assert isinstance(data.train, dict)
    assert isinstance(data.test, dict)
    assert [*data.train] == [*data.test] == ["image", "label"]
    assert "speaker" in rows, "the user's dictionary stays as it was"


def test_tensors_and_mapped_files_are_not_copied(tmp_path):
    images = torch.zeros(24, 3, 8, 8, dtype=torch.uint8)
    data = FederatedData((images, Y), clients=OWNERS)
    assert data.train[0].data_ptr() == images.data_ptr()
    np.save(tmp_path / "x.npy", X.numpy())
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    data = FederatedData({"x": mapped, "y": Y}, clients=OWNERS)
    assert data.train["x"].data_ptr() == mapped.ctypes.data
    assert data.train["x"].equal(X)
    view = FederatedData((torch.complex(X, X).conj(), Y), clients=OWNERS).train[0]
    assert not view.is_conj(), "bytes of a conjugate view cannot be read"


class Doubled(TensorDataset):
    """Tensors with a transform of their own."""

    def __getitem__(self, k: int) -> Any:
        x, y = super().__getitem__(k)
        return 2 * x, y


@pytest.mark.parametrize(
    ("rows", "wanted"),
    [
        (TensorDataset(X, Y), (X, Y)),
        (Doubled(X, Y), (2 * X, Y)),
        (Samples(lambda k: (X[k], int(Y[k]))), (X, Y)),
        (Duck(), (X, Y)),
        (Samples(lambda k: {"x": X[k].numpy(), "y": int(Y[k])}), {"x": X, "y": Y}),
        (Samples(lambda k: ({"a": X[k], "b": (X[k], Y[k])}, Y[k])), ({"a": X, "b": (X, Y)}, Y)),
        ([X, Y], (X, Y)),
        ({"x": X.tolist(), "y": Y.tolist()}, {"x": X, "y": Y}),
    ],
)
def test_data_sets_and_lists_become_trees_of_tensors(rows: Any, wanted: Any):
    train = FederatedData(rows, clients=OWNERS).train
    torch.testing.assert_close(train, wanted, rtol=0, atol=0)


def test_schemes_see_the_classes_and_the_seed():
    scheme = partitions.dirichlet(alpha=0.3, clients=3, min_size=1)
    data = FederatedData({"x": X, "target": Y}, clients=scheme, seed=5)
    expected = schemes.dirichlet(Y, 3, 5, alpha=0.3, min_size=1)
    assert data.partition.digest == expected.digest
    seeded = FederatedData((X, Y), clients=partitions.shards(clients=3, seed=1), seed=5)
    assert seeded.partition.digest == schemes.shards(Y, 3, 1).digest
    unlabeled = FederatedData((X, X[:, 0]), clients=partitions.iid(clients=3))
    assert unlabeled.partition.sizes.tolist() == [8, 8, 8]
    small = FederatedData((X, Y.to(torch.uint16)), clients=partitions.shards(clients=3), seed=1)
    assert small.partition.digest == schemes.shards(Y, 3, 1).digest
    own = FederatedData(X, clients=lambda y, seed: Partition.from_owners(OWNERS, 4))
    assert own.num_clients == 4


def test_an_unknown_option_of_a_scheme_shows_at_once():
    with pytest.raises(TypeError, match="alhpa"):
        partitions.dirichlet(clients=3, alhpa=0.1)


def test_fractions_keep_owners():
    owners = torch.arange(1000) % 10
    x = torch.arange(1000.0)
    data = FederatedData((x, owners), test=0.2, validation=0.1, clients=owners)
    assert data.partition.sizes.tolist() == [70] * 10
    rows = [data.train[0][data.partition.indices]]
    for part, size in (("test", 20), ("validation", 10)):
        held, partition = getattr(data, part), data.parts[part]
        assert partition.sizes.tolist() == [size] * 10
        for client in range(10):
            assert (held[1][partition[client]] == client).all()
        rows.append(held[0])
    assert torch.cat(rows).sort().values.equal(x)
    again = FederatedData((x, owners), test=0.2, validation=0.1, clients=owners, seed=1)
    assert not again.test[0].equal(data.test[0])


def test_a_row_of_several_clients_is_tested_by_each_of_them():
    shared = Partition.from_lists([[0, 1, 2, 3], [0, 1, 2, 3]])
    data = FederatedData(X, test=0.25, clients=shared)
    held = data.test[:, 0] / 5
    assert not torch.isin(data.partition.indices, held.long()).any()
    assert [data.parts["test"][client].tolist() for client in range(2)] == [[*range(len(held))]] * 2


@pytest.mark.parametrize(
    ("rows", "target", "inputs", "place"),
    [
        ((X, Y), None, X, Y),
        ((Y, X), 0, X, Y),
        ((X, X, Y), None, (X, X), Y),
        ({"x": X, "label": Y}, None, X, Y),
        ({"x": X, "z": X, "digit": Y}, "digit", {"x": X, "z": X}, Y),
        ({"x": X, "age": Y, "sex": -Y}, ["sex", "age"], X, {"sex": -Y, "age": Y}),
        ((X, Y, -Y, X), [1, -2], (X, X), (Y, -Y)),
        (X, None, X, X),
        ((X,), None, X, X),
    ],
)
def test_inputs_and_target_are_divided(rows: Any, target: Any, inputs: Any, place: Any):
    data = FederatedData(rows, clients=OWNERS, target=target)
    torch.testing.assert_close(data.divided(data.train), (inputs, place), rtol=0, atol=0)


def test_one_line_describes_it():
    data = FederatedData((X, Y), (X, Y), 0.25, clients=[0] * 4 + [1] * 8 + [2] * 12)
    said = repr(data)
    assert "\n" not in said
    for part in ("18 rows", "3 clients", "3 / 6 / 9", "test 24 without owners", "validation 6"):
        assert part in said


NAN = X.clone()
NAN[[3, 5], 1] = torch.nan


@pytest.mark.parametrize(
    ("rows", "options", "said"),
    [
        ({"x": X, "speaker": OWNERS}, {"clients": "speakr"}, "speaker"),
        ((X, Y), {"clients": "speaker"}, "speaker"),
        ((X, Y), {"clients": 10}, "10"),
        ((X, Y), {"clients": dict.fromkeys(range(24), "a")}, "clients is {0: 'a'"),
        ((X, Y), {"clients": OWNERS[:7]}, "7"),
        ((X, Y), {"clients": OWNERS.view(12, 2)}, "12, 2"),
        ((X, Y), {"clients": ["a", None] * 12}, "12 of 24"),
        ((X, Y), {"clients": np.ma.masked_equal(OWNERS.numpy(), 1)}, "of 24 rows have no owner"),
        ((X, Y), {"clients": [1, "1"] * 12}, "'1'"),
        ((X, Y), {"clients": [[0, 1], []]}, "client 1"),
        ((X, Y), {"clients": [[0, 1], [1, 2]]}, "row 1"),
        ((X, Y), {"clients": [[0, 1], [24]]}, "24"),
        ((X, Y), {"clients": [[0, 1], [-1]]}, "negative"),
        ((X, Y), {"clients": [[0, 1], [2.9]]}, "client 1 has positions"),
        ((X, Y), {"clients": [torch.tensor([[0], [1]])]}, "(2, 1)"),
        ((X, Y), {"clients": Partition.from_lists([[0], [30]])}, "30"),
        ((X, X[:, 0]), {"clients": partitions.dirichlet(clients=3)}, "dirichlet"),
        ((X, Y), {"clients": partitions.iid(clients=2.5)}, "2.5 clients"),
        ((NAN, Y), {}, "column 1 of train[0] is NaN or infinite in 2 of 24 rows"),
        ({"x": X, "y": NAN[:, 1] / 0}, {}, "train['y']"),
        ((np.ma.masked_greater(X.numpy(), 1), Y), {"clients": OWNERS}, "masked"),
        ({"x": X, "word": ["a"] * 24}, {}, "train['word']"),
        (Samples(lambda k: (X[k], "a")), {}, "train[1]"),
        (Samples(lambda k: X[0][: k % 3]), {}, "collate_fn([data[k]"),
        (Samples(object), {}, "one batch"),
        (Samples(lambda k: {"x": X[k]} if k else {"x": X[k], "y": Y[k]}), {}, "one batch ('y')"),
        (Stream(), {}, "IterableDataset"),
        ([TensorDataset(X, Y)] * 2, {"clients": [0, 1]}, "train[0] is a TensorDataset"),
        ({"x": Duck()}, {}, "train['x'] is a Duck"),
        (tuple(X[k:] for k in range(24)), {}, "train[0] has 24, train[1] has 23: give"),
        (DataLoader(TensorDataset(X, Y)), {}, "train is a DataLoader"),
        ((X, Y), {"clients": [k == Y for k in range(3)]}, "flatnonzero(mask)"),
        ((X, Y), {"clients": [[True] * 24]}, "flatnonzero(mask)"),
        ({"x": [[1.0], [2.0, 3.0]]}, {"clients": [0, 1]}, "train['x']"),
        ((X, Y[:23]), {}, "23"),
        ((X[:0], Y[:0]), {}, "no rows"),
        ((X, torch.tensor(1.0)), {}, "single number"),
        (pandas.DataFrame({"a": [1]}), {}, "from_table"),
        ({"x": X, "digit": Y}, {"target": "digits"}, "digit"),
        ((X, Y), {"target": 2}, "2"),
        ((X, Y), {"classes": "ab"}, "0 to 2"),
        ((X, X), {"classes": "ab"}, "int64"),
        ((X, Y), {"test": 0.0}, "0.0"),
        ((X, Y), {"test": 1}, "1"),
        ((X, Y), {"test": 0.5, "validation": 0.5}, "validation"),
        ((X, Y), {"test": 0.01}, "test"),
        ((X, Y), {"test": (X[:, :2], Y)}, "(2,)"),
        ((X, Y), {"validation": {"x": X}}, "validation"),
    ],
)
def test_what_does_not_fit_is_refused(rows: Any, options: dict[str, Any], said: str):
    with pytest.raises(UserError) as error:
        FederatedData(rows, **{"clients": OWNERS, **options})
    assert said in str(error.value)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_nested_tensor_is_refused():
    with pytest.raises(UserError, match=r"train\[0\] is nested"):
        FederatedData((torch.nested.as_nested_tensor([*X]), Y), clients=OWNERS)


def test_a_target_that_is_not_obvious_is_named_by_the_user():
    data = FederatedData({"x": X, "digit": Y}, clients=OWNERS)  # a LightningModule needs none
    with pytest.raises(UserError, match="x, digit"):
        data.divided(data.train)
