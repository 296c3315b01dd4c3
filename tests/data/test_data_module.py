"""Lightning's data modules as federated data."""

from typing import Any

import numpy as np
import pytest
import torch
from lightning import LightningDataModule
from torch.utils.data import (
    DataLoader,
    IterableDataset,
    SubsetRandomSampler,
    TensorDataset,
    random_split,
)

from fl_lightning import FederatedData, Partition, UserError, partitions

X = np.arange(24.0, dtype=np.float32).reshape(8, 3)


class Digits(LightningDataModule):
    """Training and validation rows; batches of the collation are dictionaries."""

    def __init__(self) -> None:
        super().__init__()
        self.stages: list[str] = []

    def setup(self, stage: str) -> None:
        self.stages.append(stage)
        self.data = TensorDataset(torch.from_numpy(X), torch.arange(8) % 2)

    def train_dataloader(self) -> Any:
        return DataLoader(self.data, batch_size=3, shuffle=True, collate_fn=self.collate)

    def val_dataloader(self) -> Any:
        return [DataLoader(self.data, collate_fn=self.collate)]

    @staticmethod
    def collate(samples: list[Any]) -> dict[str, Any]:
        x, y = zip(*samples, strict=True)
        return {"x": torch.stack(x) * 2, "y": torch.stack(y), "writer": ["u", "v"] * 4}


class OwnedDigits(Digits):
    def clients(self) -> list[str]:
        return ["c", "d"] * 4

    @staticmethod
    def collate(samples: list[Any]) -> tuple[Any, Any]:
        x, y = zip(*samples, strict=True)
        return torch.stack(x), torch.stack(y)


def test_rows_of_a_data_module_are_its_batches():
    module = Digits()
    data = FederatedData.from_datamodule(module, clients="writer", test=0.25)
    assert isinstance(data.train, dict)
    np.testing.assert_array_equal(data.train["x"], X * 2)
    assert data.names == ("u", "v")
    assert isinstance(data.validation, dict)
    assert [*data.validation] == ["x", "y"]
    assert data.parts["test"].sizes.tolist() == [1, 1]
    assert module.stages == ["fit", "validate"]


def test_a_data_module_may_say_who_owns_its_rows():
    data = FederatedData.from_datamodule(OwnedDigits())
    assert data.names == ("c", "d")
    np.testing.assert_array_equal(data.train[0], X)
    scheme = partitions.iid(clients=4)
    assert FederatedData.from_datamodule(OwnedDigits(), clients=scheme).num_clients == 4


def test_loaders_of_data_sets_make_a_data_module():
    rows = TensorDataset(torch.from_numpy(X), torch.arange(8))
    module = LightningDataModule.from_datasets(rows, test_dataset=rows)
    data = FederatedData.from_datamodule(module, clients=Partition.from_lists([[0, 1], [2, 3]]))
    assert data.test[1].equal(torch.arange(8))
    assert data.validation is None


class SplitDigits(LightningDataModule):
    """Its rows are split anew in each stage, by torch and by NumPy."""

    def setup(self, stage: str) -> None:
        mine, self.held = random_split(torch.arange(40).split(1), [0.5, 0.5])
        order = np.random.permutation(len(mine))  # noqa: NPY002
        self.train, self.tuned = (TensorDataset(torch.cat([*mine])[k]) for k in np.split(order, 2))

    def train_dataloader(self) -> Any:
        return DataLoader(self.train)

    def val_dataloader(self) -> Any:
        return DataLoader(self.tuned)

    def test_dataloader(self) -> Any:
        return DataLoader(TensorDataset(torch.cat([*self.held])))


def test_a_split_in_setup_is_the_same_in_each_stage():
    data = FederatedData.from_datamodule(SplitDigits(), clients=[0, 1] * 5)
    parts = [rows[0] for rows in (data.train, data.validation, data.test)]
    assert torch.cat(parts).unique().tolist() == [*range(40)]


def test_a_list_of_samples_behind_a_loader_is_a_data_set():
    class Listed(LightningDataModule):
        def train_dataloader(self) -> Any:
            return DataLoader([{"x": torch.full((2,), k), "y": k} for k in range(4)])

    data = FederatedData.from_datamodule(Listed(), clients=[0, 1, 1, 0])
    assert isinstance(data.train, dict)
    assert data.train["x"].shape == (4, 2)
    assert data.train["y"].tolist() == [0, 1, 2, 3]


class Endless(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(())


class Streamed(Digits):
    def train_dataloader(self) -> Any:
        return DataLoader(Endless())


class Normalized(Digits):
    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        return {**batch, "x": batch["x"] / 255}


class Sampled(Digits):
    def val_dataloader(self) -> Any:
        return DataLoader(self.data, sampler=SubsetRandomSampler([0, 1]))


class Doubled(Digits):
    def val_dataloader(self) -> Any:
        return [*super().val_dataloader(), *super().val_dataloader()]


class Sorted(OwnedDigits):
    @staticmethod
    def collate(samples: list[Any]) -> tuple[Any, Any]:
        """As `pack_padded_sequence` asks for by default."""
        return OwnedDigits.collate(sorted(samples, key=lambda sample: float(sample[0].sum())))


@pytest.mark.parametrize(
    ("module", "options", "said"),
    [
        (Digits(), {}, "Digits does not say who owns its rows"),
        (Streamed(), {"clients": [0]}, "IterableDataset"),
        (Normalized(), {"clients": "writer"}, "on_after_batch_transfer"),
        (Sampled(), {"clients": [0] * 8}, "val_dataloader has a SubsetRandomSampler"),
        (Doubled(), {"clients": "writer"}, "val_dataloader"),
        (Sorted(), {}, "changes the order of samples"),
    ],
)
def test_data_modules_that_do_not_fit_are_refused(module: Any, options: Any, said: str):
    with pytest.raises(UserError, match=said):
        FederatedData.from_datamodule(module, **options)
