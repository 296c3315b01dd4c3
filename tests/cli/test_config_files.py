"""YAML files of options: each says a thing once."""

from pathlib import Path

import pytest
import yaml

from fl_lightning.cli.config_files import read_files
from fl_lightning.runs.config_yaml import flat, load


def refusal(capsys: pytest.CaptureFixture[str], file: Path, text: str) -> str:
    file.write_text(text)
    with pytest.raises(SystemExit, match="2"):
        read_files([str(file)], {"methods"})
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert said.count("\n") == 1
    return said


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("lr: 0.1\nrounds: 5\nlr: 0.2\n", "'lr' stands there twice, in lines 1 and 3"),
        (
            "algorithm:\n  name: fedsam\n  rho: 1\n  rho: 1\n",
            "'rho' stands there twice, in lines 3 and 4",
        ),
        ("methods: {fedsam: {rho: 1, rho: 2}}\n", "'rho' stands there twice, in lines 1 and 1"),
        (
            "methods:\n  fedsam: {rho: 1}\n  fedavg:\n  fedsam: {}\n",
            "'fedsam' stands there twice, in lines 2 and 4",
        ),
        ("algorithm: {name: fedsam, rho: 1}\nalgorithm.rho: 2\n", "names algorithm.rho twice"),
        ("algorithm.rho: 2\nalgorithm: {name: fedsam, rho: 1}\n", "names algorithm.rho twice"),
    ],
)
def test_what_stands_twice_is_refused_with_key_file_and_lines(
    text: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refusal(capsys, tmp_path / "mine.yaml", text)
    assert told in said
    assert str(tmp_path / "mine.yaml") in said


def test_a_merged_mapping_may_be_overridden() -> None:
    text = "base: &base {lr: 1, clip: 2}\none:\n  deep: &deep {<<: *base, lr: 3}\ntwo: {<<: *deep, clip: 4}\n"
    read = load(text)
    assert read["one"]["deep"] == {"lr": 3, "clip": 2}
    assert read["two"] == {"lr": 3, "clip": 4}
    assert load("a: &a {x: 1}\nb: &b {y: 2}\nc:\n  <<: *a\n  <<: *b\n1: one\n'1': two\n")["c"] == {
        "x": 1,
        "y": 2,
    }


@pytest.mark.parametrize("text", ["? [1, 2]\n: 3\n", "? {a: 1}\n: 3\n? {a: 1}\n: 4\n"])
def test_keys_that_are_no_names_are_left_to_pyyaml(text: str) -> None:
    with pytest.raises(yaml.YAMLError, match="unhashable key"):
        load(text)


def test_later_files_win(tmp_path: Path) -> None:
    for name, text in (("a", "lr: 1\nclip: 2\n"), ("b", "lr: 3\n")):
        (tmp_path / name).write_text(text)
    assert read_files([str(tmp_path / "a"), str(tmp_path / "b")], ()) == ({"lr": 3, "clip": 2}, {})


def test_names_are_joined_by_dots() -> None:
    assert flat({"algorithm": {"name": "fedsam", "rho": 1}, "lr": 2}) == {
        "algorithm": "fedsam",
        "algorithm.rho": 1,
        "lr": 2,
    }
