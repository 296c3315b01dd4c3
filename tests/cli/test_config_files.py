"""YAML files of options: each says a thing once; callbacks in them and on the command line."""

from math import inf
from pathlib import Path

import pytest
from refusals import experiment, sentence

from fl_lightning.callbacks import CALLBACKS
from fl_lightning.cli.choices import component_text, read_component
from fl_lightning.cli.config_files import read_files
from fl_lightning.runs.config import dump, load


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("lr: 0.1\nrounds: 5\nlr: 0.2\n", ['"lr"', "line 3"]),
        ("algorithm:\n  name: fedsam\n  rho: 1\n  rho: 1\n", ['"rho"', "line 4"]),
        ("methods: {fedsam: {rho: 1, rho: 2}}\n", ['"rho"', "line 1"]),
        ("methods:\n  fedsam: {rho: 1}\n  fedsam: {}\n", ['"fedsam"', "line 3"]),
        ("a: &a {x: 1}\nb:\n  <<: *a\n  <<: *a\n", ['"<<"', "line 4"]),
        ("algorithm: {name: fedsam, rho: 1}\nalgorithm.rho: 2\n", ["algorithm.rho twice"]),
        ("algorithm.rho: 2\nalgorithm: {name: fedsam, rho: 1}\n", ["algorithm.rho twice"]),
    ],
)
def test_an_option_given_twice_is_refused_with_file_and_line(text, words, tmp_path, capsys):
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    said = sentence(capsys, read_files, [str(file)])
    assert all(word in said for word in [*words, str(file)]), said


def test_files_that_name_each_other_are_refused(tmp_path, capsys):
    first, second = tmp_path / "first.yaml", tmp_path / "second.yaml"
    first.write_text("config: second\n")
    second.write_text("config: [first.yaml]\n")
    assert sentence(capsys, read_files, [str(first)]).count("first.yaml") == 3


def test_a_merged_mapping_may_be_overridden():
    one = "base: &base {lr: 1, clip: 2}\none:\n  deep: &deep {<<: *base, lr: 3}\n"
    read = load(one + "two: {<<: *deep, clip: 4}\n")
    assert read["one"]["deep"] == {"lr": 3, "clip": 2}
    assert read["two"] == {"lr": 3, "clip": 4}
    two = load("a: &a {x: 1}\nb: &b {y: 2}\nc: {<<: [*a, *b]}\n1: one\n'1': two\n")
    assert two["c"] == {"x": 1, "y": 2}


WORDS = {"yes": "yes", "1:30": "1:30", "true": True, "~": None, "": None, "1_000": 1000, "010": 10}
WORDS |= {"0o10": 8, "1e-3": 1e-3, "1e-07": 1e-7, "1.0e-07": 1e-7, "-.5e+2": -50.0, "-.inf": -inf}


@pytest.mark.parametrize(("text", "value"), WORDS.items())
def test_words_are_those_of_yaml_1_2(text, value):
    read = load(text)
    assert (type(read), read) == (type(value), value)
    assert load(dump({"value": value, "text": text})) == {"value": value, "text": text}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("!!int foo", "'foo'"),
        ("[1", "line 2: expected ',' or ']'"),
        ("*other", "line 1: found undefined alias 'other'"),
        ("\0", "unacceptable character"),
    ],
)
def test_what_is_no_yaml_is_one_sentence(text, reason, tmp_path, sentence):
    file = tmp_path / "mine.yaml"
    file.write_text(f"compile: {text}\n")
    said = sentence(read_files, [str(file)])
    assert str(file) in said
    assert reason in said


@pytest.mark.parametrize("name", ["fedssg/table4", "fedssg/table4.yaml"])
def test_an_installed_preset_is_found_by_name_unless_a_file_has_it(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert read_files([name])[0]["algorithm"] == "fedssg"
    Path("fedssg").mkdir()
    Path(name).write_text("algorithm: mine\n")
    assert read_files([name])[0] == {"algorithm": "mine"}


@pytest.mark.parametrize(
    ("given", "whole"),
    [
        ("sharpness:rho=0.1", "sharpness:every=10,rho=0.1,samples=none"),
        ("Layer-Strength", "layer_strength:every=10"),
        (
            "evaluate_models:every=2,models=cohort,clients",
            "evaluate_models:models=cohort,clients,every=2",
        ),
        (
            "early_stopping:min-delta=1",
            "early_stopping:patience=10,monitor=none,min_delta=1.0,mode=auto,stopping_threshold=none",
        ),
        ("diagnostics", "diagnostics"),
    ],
)
def test_a_text_is_recorded_with_every_option(given, whole):
    for text in (given, whole):
        assert component_text(read_component("callback", text)) == whole


def test_flags_replace_the_callbacks_of_a_file(tmp_path):
    file = tmp_path / "options.yaml"
    file.write_text("callback:\n- layer_strength\n- sharpness:rho=0.1,every=5\n")

    def callbacks(*argv: str) -> list[str]:
        texts = experiment(tmp_path / "run", "--config", str(file), *argv).options.callback
        return [text.partition(":")[0] for text in texts]

    assert callbacks() == ["layer_strength", "sharpness"]
    assert callbacks("--callback", "none") == []
    assert callbacks("--callback", "diagnostics", "--callback", "consistency") == [
        "diagnostics",
        "consistency",
    ]


def test_help_lists_all_callbacks_and_the_options_of_those_named(tmp_path, capsys):
    with pytest.raises(SystemExit):
        experiment(tmp_path / "run", "--callback", "growth_stopping", "--help")
    shown = capsys.readouterr().out
    assert [name for name in CALLBACKS if f"  {name} " not in shown] == []
    assert "tau=X" in shown
    assert "rho=X" not in shown.partition("callbacks:")[2]
