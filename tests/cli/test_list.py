"""`fl-lightning list`, `show` and `new`."""

import sys
from pathlib import Path
from shlex import split

import pytest

from fl_lightning import __main__ as entry
from fl_lightning.algorithms.registry import ALGORITHMS
from fl_lightning.cli.algorithms import list_all as main
from fl_lightning.cli.algorithms import show

OWN = """
from fl_lightning import Algorithm, cosine
from fl_lightning.terms import SAM


def mine(rho: float = 0.2) -> Algorithm:
    \"\"\"SAM with my radius.

    Args:
        rho (float): The radius
            of the ball: in 2-norm.

    References:
        Mine, 2026
    \"\"\"
    return Algorithm(SAM(rho), server_lr=cosine(1.0, 0.1))


def bare(rho: float) -> Algorithm:
    return Algorithm(SAM(rho))


def untyped(rho=0.3, part=None):
    return Algorithm(SAM(rho))


def forgotten():
    Algorithm(SAM())


def wrong():
    return Algorithm(Wrong())


def of_lstm():
    return Algorithm(OfLSTM())


class Wrong(SAM):
    def gradient(self, oracle, w, v):
        return v.nothing


class OfLSTM(SAM):
    def gradient(self, oracle, w, v):
        return oracle(w) * v.layout.mask("lstm", w)
"""


def test_the_list_has_a_row_of_costs_for_each_algorithm_and_fits_a_terminal(capsys):
    main([])
    lines = capsys.readouterr().out.splitlines()
    rows = {cells[0]: cells[-4:] for line in lines if (cells := line.split())}
    assert rows.keys() >= ALGORITHMS.keys()
    assert rows["fedavg"] == ["1", "1", "0", "1"]
    assert rows["scaffold"] == ["2", "2", "1", "1"]
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("name", ["fedtoga", "fedrcl", "fedsol"])
def test_an_explanation_fits_a_terminal(name, capsys):
    show([name])
    entry.main(["--help"])
    said = capsys.readouterr().out
    assert max(map(len, said.splitlines())) <= 80
    assert not any(words in said for words in ("<function", "<lambda", " object at 0x", "\\"))


@pytest.mark.parametrize("recipe", ["lightning_module", "sam_in_lightning", "toy"])
def test_recipes_that_are_no_experiments_show_their_help_too(recipe, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(SystemExit, match="0"):
        entry.main(["run", recipe, "--help"])
    assert f"usage: {recipe}.py" in capsys.readouterr().out


def test_a_terminal_is_told_at_once_that_a_command_loads_torch(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    entry.main(["run", "--help"])
    assert capsys.readouterr().err == ""
    with pytest.raises(SystemExit):
        entry.main(["run", "nothing"])
    assert capsys.readouterr().err.startswith("loading torch ...\n")


def test_an_own_algorithm_is_shown_like_those_of_the_package(tmp_path, capsys, sentence):
    file = tmp_path / "mine.py"
    file.write_text(OWN)
    show([f"{file}:mine"])
    said = capsys.readouterr().out
    assert "SAM with my radius." in said
    assert "rho X\n      The radius of the ball: in 2-norm. (default: 0.2)" in said
    assert "References\n  Mine, 2026\n" in said
    assert "SAM(rho=0.2" in said
    assert "learning rate is cosine(1, 0.1)" in said
    assert "there is no algorithm" in sentence(show, ["fedagv"])
    assert "has no default for rho" in sentence(show, [f"{file}:bare"])
    assert "must return an Algorithm, but returned None" in sentence(show, [f"{file}:forgotten"])
    assert "Wrong.gradient reads v.nothing" in sentence(show, [f"{file}:wrong"])
    assert "'lstm' in its name; " in (said := sentence(show, [f"{file}:of_lstm"]))
    assert "perceptron" in said


def test_only_what_can_be_written_on_a_command_line_is_shown_as_an_option(tmp_path, capsys):
    file = tmp_path / "mine.py"
    file.write_text(OWN)
    show([f"{file}:untyped"])
    said = capsys.readouterr().out
    assert "rho X\n      (default: 0.3)" in said
    assert "part" not in said.partition("Terms at")[0]


SMALL = ["--rounds", "2", "--clients", "4", "--local-epochs", "1"]


@pytest.mark.parametrize("kind", ["algorithm", "callback", "data", "recipe"])
def test_a_new_file_runs_as_it_says(kind, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    entry.main(["new", kind, "my own.py"])
    command = split(capsys.readouterr().out.splitlines()[2])
    assert command[:2] in (["fl-lightning", "run"], ["python", "my own.py"])
    entry.main(["run", *command[2 if "run" in command else 1 :], *SMALL])
    assert "round 2/2" in capsys.readouterr().out


def test_a_new_file_is_named_as_recipes_read_it(tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        entry.main(["new", "callback", str(tmp_path / "mine")])
    assert stop.value.code == 2
    assert "mine.py" in capsys.readouterr().err
    assert not [*tmp_path.iterdir()]


def test_no_file_is_overwritten(tmp_path, capsys):
    (tmp_path / "mine.py").write_text("mine")
    with pytest.raises(SystemExit) as stop:
        entry.main(["new", "data", str(tmp_path / "mine.py")])
    assert stop.value.code == 2
    assert "there already" in capsys.readouterr().err
    assert Path(tmp_path, "mine.py").read_text() == "mine"


def test_ctrl_c_ends_a_command_in_silence(monkeypatch, capsys):
    def interrupted(name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(entry, "resolve_name", interrupted)
    with pytest.raises(SystemExit, match="130"):
        entry.main(["compare", "runs"])
    assert capsys.readouterr().err == ""
