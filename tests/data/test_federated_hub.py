"""Hugging Face data sets, by a stand-in, as federated data."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from fl_lightning import FederatedData, UserError, partitions


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


def test_a_column_of_lists_of_which_one_is_missing_is_refused_by_name():
    class Missing(HubDataset):
        def with_format(self, form: str | None, columns: Any = None) -> HubDataset:
            return Missing(self.columns, form or "", columns)

        def __getitem__(self, key: str | int) -> Any:
            return super().__getitem__(key) if key == "user" else key.shape  # as datasets does

    with pytest.raises(UserError, match=r"\['x'\] is no tensor"):
        FederatedData(Missing({"x": [None, [1.0]], "user": [0, 1]}), clients="user")


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
