"""Hugging Face data sets, by a stand-in, and Lightning's data modules as federated data."""

from collections.abc import Sequence
from types import SimpleNamespace
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


class HubDataset:
    """What a `datasets.Dataset` does with columns, for those used here."""

    def __init__(
        self, columns: dict[str, Any], form: str = "", shown: Any = None, **features: Any
    ) -> None:
        self.columns, self.form, self.features = columns, form, features
        self.shown = shown or [*columns]

    @property
    def column_names(self) -> list[str]:
        return [*self.columns]

    @property
    def format(self) -> dict[str, Any]:
        return {"type": self.form or None, "columns": self.shown}

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def with_format(self, form: str | None, columns: Any = None) -> "HubDataset":
        return HubDataset(self.columns, form or "", columns, **self.features)

    def __getitem__(self, key: str | int) -> Any:
        if isinstance(key, int):
            row = {name: column[key] for name, column in self.columns.items()}
            return {**row, "wave": -row["wave"]} if self.form == "custom" else row
        assert key in self.shown
        column = self.columns[key]
        if self.form != "torch" or isinstance(column[0], str):
            return column
        return torch.tensor(np.asarray(column))


class HubSplits(dict[str, HubDataset]):
    column_names = {"train": ["x"]}

    def with_format(self, form: str) -> "HubSplits":
        return self


class Letters:
    """A tokenizer: a token for each letter, 0 at the end of a text."""

    eos_token_id, pad_token_id = 0, 99

    def __call__(self, texts: Sequence[str], add_special_tokens: bool) -> dict[str, Any]:
        assert not add_special_tokens
        return {"input_ids": [[ord(letter) - 96 for letter in text] for text in texts]}


X = np.arange(24.0, dtype=np.float32).reshape(8, 3)
SPEECH = {"wave": X, "word": [0, 1] * 4, "speaker": ["b", "a", "a", "b"] * 2}
CHATS = {"inputs": ["ab", "c", "d", "efg"], "targets": ["", "h", "ij", "k"], "user": [7, 3, 7, 3]}


def speech() -> HubDataset:
    return HubDataset(SPEECH, word=SimpleNamespace(names=["yes", "no"]))


def read(dataset: Any, **options: Any) -> FederatedData:
    return FederatedData.from_huggingface(dataset, **options)


def test_columns_are_a_dictionary_of_tensors():
    data = read(speech(), clients="speaker", target="word", test=speech())
    assert isinstance(data.train, dict)
    assert [*data.train] == ["wave", "word"]
    np.testing.assert_array_equal(data.train["wave"], X)
    assert data.names == ("a", "b")
    assert data.partition[0].tolist() == [1, 2, 5, 6]
    assert data.classes == ("yes", "no")
    assert isinstance(data.test, dict)
    assert data.test["word"].tolist() == SPEECH["word"]


def test_columns_are_chosen_and_clients_come_from_a_scheme():
    data = read(speech(), clients=partitions.iid(clients=2), columns=["wave"], test=0.25)
    assert isinstance(data.train, dict)
    assert [*data.train] == ["wave"]
    assert data.parts["test"].sizes.tolist() == [1, 1]


def test_a_data_set_may_be_given_directly():
    data = FederatedData(speech(), clients="speaker", target="word")
    assert data.names == ("a", "b")
    assert data.divided(data.train)[1].tolist() == SPEECH["word"]


@pytest.mark.parametrize("make", [read, FederatedData])
def test_the_format_of_a_data_set_chooses_the_columns(make: Any):
    (only,) = make(speech().with_format("torch", ["wave"]), clients=[0, 1] * 4).train
    assert only == "wave"
    shown = speech().with_format("numpy", ["wave", "word"])
    data = make(shown, clients="speaker", target="word", test=shown)
    assert [*data.train] == [*data.test] == ["wave", "word"]
    assert data.names == ("a", "b")


@pytest.mark.parametrize("make", [read, FederatedData])
def test_a_column_of_dates_is_refused_by_name_but_may_be_the_owners(make: Any):
    days = HubDataset({"x": X, "day": list(np.arange("2026-01", "2026-09", dtype="datetime64[M]"))})
    assert make(days, clients="day").num_clients == 8
    with pytest.raises(UserError, match=r"\['day'\] is no tensor"):
        make(days, clients=[0, 1] * 4)


def test_parts_that_number_their_classes_in_another_way_are_refused():
    turned = HubDataset(SPEECH, word=SimpleNamespace(names=["no", "yes"]))
    with pytest.raises(UserError, match="test has other classes in 'word'"):
        read(speech(), clients="speaker", target="word", test=turned)


def test_texts_of_a_client_are_packed_into_blocks():
    columns = "inputs", "targets"
    chats = HubDataset(CHATS)
    data = read(chats, clients="user", columns=columns, tokens=Letters(), length=4, test=chats)
    assert data.names == ("3", "7")
    rows = {name: data.train[name].tolist() for name in data.train}
    assert rows == {
        "input_ids": [[3, 8, 0, 5], [6, 7, 11, 0], [1, 2, 0, 4], [9, 10, 0, 99]],
        "labels": [[3, 8, 0, 5], [6, 7, 11, 0], [1, 2, 0, 4], [9, 10, 0, -100]],
    }
    assert [data.partition[client].tolist() for client in range(2)] == [[0, 1], [2, 3]]
    assert data.test["labels"].tolist()[0] == [1, 2, 0, 3], "the test part is one text"
    inputs, target = data.divided(data.train)
    assert inputs is data.train["input_ids"]
    assert target is data.train["labels"]


@pytest.mark.parametrize(
    ("dataset", "options", "said"),
    [
        (speech(), {"clients": "speakr"}, "speaker"),
        (speech(), {"columns": ["wav"]}, "wave"),
        (speech(), {"columns": ["wave", "speaker"]}, "'speaker'"),
        (speech(), {"tokens": Letters()}, "length"),
        (speech(), {"tokens": Letters(), "length": 4}, "'wave'"),
        (speech(), {"tokens": Letters(), "length": 0}, "length is 0"),
        (speech(), {"tokens": "letters", "length": 4}, "tokens is 'letters'"),
        (SimpleNamespace(with_format=None, column_names=["x"]), {}, "stream"),
        (HubSplits(train=speech()), {}, "['train']"),
        (speech().with_format("custom"), {}, "transform"),  # as after with_transform
        (SPEECH, {}, "dict"),
    ],
)
def test_data_sets_that_do_not_fit_are_refused(dataset: Any, options: dict[str, Any], said: str):
    with pytest.raises(UserError) as error:
        read(dataset, **{"clients": [0, 1] * 4, **options})
    assert said in str(error.value)


def test_a_transform_is_applied_to_each_row():
    data = FederatedData(speech().with_format("custom"), clients="speaker", target="word")
    assert data.train["wave"].tolist() == (-X).tolist()
    assert data.names == ("a", "b")


def test_a_collation_makes_rows_of_a_hub_data_set():
    def collate(samples: list[dict[str, Any]]) -> tuple[Any, Any]:
        return tuple(
            torch.tensor(np.array([row[name] for row in samples])) for name in ("wave", "word")
        )

    class Waves(LightningDataModule):
        def train_dataloader(self) -> Any:
            return DataLoader(speech(), collate_fn=collate)

    data = FederatedData.from_datamodule(Waves(), clients=[0, 1] * 4)
    assert data.train[0].tolist() == X.tolist()
    assert data.train[1].tolist() == SPEECH["word"]


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


@pytest.mark.parametrize(
    ("module", "options", "said"),
    [
        (Digits(), {}, "Digits does not say who owns its rows"),
        (LightningDataModule(), {"clients": [0]}, "train_dataloader"),
        (Streamed(), {"clients": [0]}, "IterableDataset"),
        (Normalized(), {"clients": "writer"}, "on_after_batch_transfer"),
        (Sampled(), {"clients": [0] * 8}, "val_dataloader has a SubsetRandomSampler"),
        (Doubled(), {"clients": "writer"}, "val_dataloader"),
    ],
)
def test_data_modules_that_do_not_fit_are_refused(module: Any, options: Any, said: str):
    with pytest.raises(UserError, match=said):
        FederatedData.from_datamodule(module, **options)
