"""Data frames and CSV files as federated data."""

import gzip
import re
from typing import Any

import numpy as np
import pandas
import pytest
import torch

from fl_lightning import FederatedData, UserError
from fl_lightning.data import tables


@pytest.fixture(params=["frame", "file"])
def source(request, tmp_path, monkeypatch):
    """The frame as it is, or a file of it that is read in many chunks."""

    def given(frame: pandas.DataFrame) -> Any:
        if request.param == "frame":
            return frame
        monkeypatch.setattr(tables, "BLOCK", 40)
        frame.to_csv(tmp_path / "table.csv", index=False)
        return tmp_path / "table.csv"

    return given


def table(rows: int = 60) -> pandas.DataFrame:
    draws = np.random.default_rng(0)
    return pandas.DataFrame(
        {
            "age": draws.integers(18, 90, rows),
            "height": draws.normal(170, 10, rows),
            "delay": draws.normal(size=rows),
            "carrier": draws.choice(["UA", "AA", "DL"], rows),
            "late": draws.choice(["yes", "no"], rows),
            "site": draws.permutation(np.arange(rows) % 12),
            "smoker": draws.random(rows) < 0.5,
        }
    )


def read(given: Any, **options: Any) -> FederatedData:
    return FederatedData.from_table(given, **{"test": None, "standardize": False, **options})


def test_numbers_are_inputs_in_their_order(source):
    frame = table().drop(columns=["late", "site"])
    data = read(source(frame), target="delay", clients="carrier")
    x, y = data.train
    assert (x.dtype, y.dtype) == (torch.float32, torch.float32)
    expected = frame[["age", "height", "smoker"]].to_numpy(np.float32)
    np.testing.assert_array_equal(x.numpy(), expected)
    np.testing.assert_array_equal(y.numpy(), frame["delay"].to_numpy(np.float32))
    assert data.names == ("AA", "DL", "UA")
    for client, name in enumerate(data.names):
        assert data.partition[client].tolist() == np.flatnonzero(frame["carrier"] == name).tolist()
    assert data.inputs == 3
    assert data.classes == ()


def test_columns_are_inputs_in_the_order_that_is_asked_for(source):
    frame, columns = table(), ["smoker", "age"]
    test = frame[["age", "delay", "smoker"]].head(5)
    data = read(source(frame), target="delay", clients="carrier", columns=columns, test=test)
    for (x, _), rows in ((data.train, frame), (data.test, test)):
        np.testing.assert_array_equal(x.numpy(), rows[columns].to_numpy(np.float32))


@pytest.mark.parametrize("columns", [None, ["age"]])
def test_a_row_that_is_longer_than_the_header_is_refused(columns: list[str] | None, tmp_path):
    file = tmp_path / "table.csv"
    file.write_text("age,delay,site\n" + "1,2,a\n" * 9 + "1,5,2,a\n")
    with pytest.raises(UserError, match="line 11"):
        read(file, target="delay", clients="site", columns=columns)


@pytest.mark.parametrize("texts", [10, 5])  # of 53 rows that are read together, 3 or none
def test_owners_may_be_numbers_in_some_rows_and_texts_in_others(source, texts: int):
    names = [f"{k:02}" for k in range(60 - texts)]
    frame = table()[["age", "delay"]].assign(site=[*names, *["eve"] * texts])
    data = read(source(frame), target="delay", clients="site")
    assert {*data.names} == {*frame["site"]}
    assert data.partition[data.names.index("eve")].tolist() == [*range(60 - texts, 60)]


@pytest.mark.parametrize("values", [[1, "1", "x"], [1, 2.5, 3], [True, "x", False]])
def test_a_target_of_other_objects_than_texts_is_refused(values: list[Any]):
    frame = table().assign(kind=pandas.Series(values * 20, dtype=object))
    with pytest.raises(UserError, match="'kind', the target"):
        read(frame, target="kind", clients="site", columns=["age"])


def test_a_target_of_dates_or_of_times_is_refused():
    dates = pandas.date_range("2026-01-01", periods=60)
    for held in (dates, dates - dates[0]):
        with pytest.raises(UserError, match="'when', the target"):
            read(table().assign(when=held), target="when", clients="site", columns=["age"])


def test_names_of_classes_are_given_once():
    given = {"columns": ["age"], "classes": ["yes", "no", "no"]}
    with pytest.raises(UserError, match="distinct"):
        read(table(), target="late", clients="site", **given)


@pytest.mark.parametrize("target", ["late", "smoker"])
def test_texts_and_truth_values_are_classes(source, target: str):
    frame = table()[["age", target, "site"]]
    data = read(source(frame), target=target, clients="site")
    assert data.classes == (("no", "yes") if target == "late" else ("False", "True"))
    assert data.train[1].tolist() == [data.classes.index(str(v)) for v in frame[target]]


def test_categories_keep_their_order():
    frame = table()[["age", "late", "site"]]
    frame["late"] = pandas.Categorical(frame["late"], ["yes", "no"])
    assert read(frame, target="late", clients="site").classes == ("yes", "no")


def test_named_classes_give_their_order_or_name_positions(source):
    frame = table()[["age", "late", "site"]]
    named = np.array(["yes", "never", "no"])
    data = read(source(frame), target="late", clients="site", classes=named)
    assert data.classes == ("yes", "never", "no")
    assert data.train[1].unique().tolist() == [0, 2]
    numbers = table()[["age", "height", "site"]]
    data = read(source(numbers), target="site", clients="age", classes="abcdefghijkl")
    assert data.train[1].tolist() == frame["site"].tolist()


def test_training_rows_alone_standardize(source):
    frame = table(600).drop(columns=["late", "carrier"])
    data = read(source(frame), target="delay", clients="site", standardize=True, test=0.25)
    trained = data.train[0][data.partition.indices].double()
    assert trained.mean(0).tolist() == pytest.approx([0] * 3, abs=1e-6)
    assert trained.std(0, correction=0).tolist() == pytest.approx([1] * 3, abs=1e-6)
    raw = read(source(frame), target="delay", clients="site", test=0.25)
    used = raw.train[0][raw.partition.indices].double()
    expected = (raw.test[0].double() - used.mean(0)) / used.std(0, correction=0)
    torch.testing.assert_close(data.test[0].double(), expected, rtol=0, atol=1e-6)


def test_a_target_is_standardized_and_keeps_its_unit(source):
    given = {"target": "delay", "clients": "site", "test": 0.25}
    raw = read(source(table(600)[["age", "delay", "site"]]), **given)
    data = read(source(table(600)[["age", "delay", "site"]]), standardize_target=True, **given)
    used = raw.train[1][raw.partition.indices]
    unit = used.mean().item(), used.std(correction=0).item()
    assert data.unit == pytest.approx(unit, abs=1e-6)
    torch.testing.assert_close(data.unit[0] + data.unit[1] * data.test[1], raw.test[1])


@pytest.mark.parametrize("value", [0.0, 0.1, 1e9])
def test_a_column_that_is_constant_in_training_is_only_shifted(value: float):
    frame = table(6000)[["age", "delay", "site"]].assign(one=value)
    other = frame[:3].assign(one=value + 1024.0)
    options = {"target": "delay", "clients": "site", "standardize": True, "test": other}
    data = read(frame, **options)
    assert (data.train[0][:, 1] == 0).all()
    torch.testing.assert_close(data.test[0][:, 1], torch.full((3,), 1024.0))


@pytest.mark.parametrize("column", ["age", "delay"])
def test_numbers_that_float32_cannot_tell_apart_are_refused(source, column: str):
    frame = table().drop(columns=["late", "carrier"])
    moved = frame.assign(**{column: 1.7e9 + frame[column]})
    with pytest.raises(UserError, match=f"'{column}' varies by .* near 1.7e\\+09"):
        read(source(moved), target="delay", clients="site")


def test_large_numbers_that_float32_tells_apart_are_inputs(source):
    days, parity = 1.7e9 + 86400.0 * np.arange(60), 2**23 + np.arange(60) % 2
    frame = table()[["delay", "site"]].assign(time=days, parity=parity, constant=1.7e9 + 0.1)
    x = read(source(frame), target="delay", clients="site").train[0]
    np.testing.assert_array_equal(x[:, 0].numpy(), days.astype(np.float32))
    assert x[:, 1].tolist() == parity.tolist()
    assert x[:, 2].unique().numel() == 1


def test_the_index_of_a_frame_is_no_input_unless_it_is_named(tmp_path):
    numbers = table()[["age", "delay", "site"]]
    numbers.to_csv(tmp_path / "table.csv")
    with pytest.raises(UserError, match="'Unnamed: 0' has no name"):
        read(tmp_path / "table.csv", target="delay", clients="site")
    data = read(tmp_path / "table.csv", target="delay", clients="site", columns=["age"])
    assert data.inputs == 1


def holes(frame: pandas.DataFrame, column: str) -> pandas.DataFrame:
    frame[column] = frame[column].astype(object if column in ("late", "site") else float)
    frame.loc[[4, 30, 50], column] = None
    return frame


@pytest.mark.parametrize(
    ("change", "options", "said"),
    [
        (lambda t: t, {"target": "delays"}, "delay"),
        (lambda t: t, {"clients": "sight"}, "site"),
        (lambda t: t.assign(city="Rome"), {}, "city"),
        (lambda t: holes(t, "age"), {}, "'age' is NaN or infinite in 3 of 60 rows"),
        (lambda t: t.assign(age=np.inf), {}, "60 of 60"),
        (lambda t: holes(t, "delay"), {}, "'delay'"),
        (lambda t: holes(t, "late"), {"target": "late"}, "3 of 60"),
        (lambda t: holes(t, "site"), {}, "3 of 60"),
        (lambda t: t[:0], {}, "no rows"),
        (lambda t: t[["delay", "site"]], {}, "no inputs"),
        (lambda t: t, {"columns": ["age", "delay"]}, "'delay' is the target"),
        (lambda t: t, {"columns": ["age", "heigth"]}, "did you mean height"),
        (lambda t: t, {"target": "late", "classes": ["yes", "nope"]}, "'no'"),
        (lambda t: t, {"classes": "ab"}, "fractions"),
        (lambda t: pandas.concat([t, t["delay"]], axis=1), {}, "several columns 'delay'"),
        (lambda t: t, {"test": table()[["delay", "age"]]}, "height"),
        (lambda t: t, {"test": 1.2}, "1.2"),
    ],
)
def test_what_does_not_fit_is_refused(source, change: Any, options: dict[str, Any], said: str):
    target = options.get("target", "delay")
    kept = "late" if target == "late" else "delay"
    frame = change(table()[["age", "height", kept, "site"]])
    with pytest.raises(UserError) as error:
        read(source(frame), **{"target": "delay", "clients": "site", **options})
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("cell", "make"),
    [
        (pandas.Timestamp(2020, 1, 1), "to_numeric(table['when'])"),
        (pandas.Series([2.5] * 60, dtype=object), "to_numeric(table['when'])"),
        ("may", "get_dummies(table, columns=['when'], dtype=float)"),
    ],
)
def test_what_makes_numbers_of_a_column_is_said(cell: Any, make: str):
    frame = table()[["age", "delay", "site"]].assign(when=cell)
    with pytest.raises(UserError, match=re.escape(make)):
        read(frame, target="delay", clients="site")


@pytest.mark.parametrize("name", ["missing.csv", "table.parquet", "empty.csv"])
def test_other_files_are_refused(tmp_path, name: str):
    (tmp_path / "empty.csv").touch()
    with pytest.raises(UserError, match=name):
        read(tmp_path / name, target="y", clients="site")


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("table.csv", b"x,y,site\n1,2.5,3,0\n2,3.5,4,1\n", "Expected 3 fields in line 2, saw 4"),
        ("table.csv.gz", gzip.compress(b"x,y,site\n1,2,3\n", mtime=0)[:-9], "end-of-stream"),
        ("table.csv.zip", b"x,y,site\n1,2,3\n", "zip"),
    ],
)
def test_damaged_files_are_refused(tmp_path, name: str, content: bytes, said: str):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=said):
        read(tmp_path / name, target="y", clients="site")


def test_columns_of_several_levels_are_refused():
    frame = table()[["age", "delay", "site"]]
    frame.columns = pandas.MultiIndex.from_tuples([("age", "mean"), ("delay", ""), ("site", "")])
    with pytest.raises(UserError, match="levels"):
        read(frame, target="delay", clients="site")


def test_texts_after_numbers_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "BLOCK", 20)
    file = tmp_path / "table.csv"
    frame = table()[["age", "site"]].assign(y=[*range(50), *"abcdefghij"])
    frame.to_csv(file, index=False)
    with pytest.raises(UserError, match="'y' holds numbers in some rows and texts in others"):
        read(file, target="y", clients="site")
    with pytest.raises(UserError, match=r"\['y'\] hold no numbers \(such as \['a'\]\)"):
        read(frame, target="age", clients="site")


def test_a_text_among_the_numbers_of_a_small_file_makes_no_classes(tmp_path):
    file = tmp_path / "table.csv"
    table()[["age", "site"]].assign(y=[*range(59), "1,5"]).to_csv(file, index=False)
    with pytest.raises(UserError, match=r"'y' holds numbers .* texts .* '1,5'"):
        read(file, target="y", clients="site")
