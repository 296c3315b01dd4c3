"""The package as installed from a wheel, without the repository; the command's first words."""

import io
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from locations import ROOT

from fl_lightning import __main__ as command
from fl_lightning.__main__ import main

FILES = "pyproject.toml", "setup.cfg", "README.md", "LICENSE"
FOLDERS = "fl_lightning", "callbacks", "recipes"


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder with the installed package alone."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("target")
    for name in FILES:
        shutil.copy(ROOT / name, source)
    for name in FOLDERS:
        shutil.copytree(ROOT / name, source / name)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "install"]
    options = ["--no-deps", "--no-build-isolation", "--target", target, source]
    subprocess.run([*pip, *options], check=True, timeout=300)
    return target


def fl_lightning(installed: Path, folder: Path, *argv: str) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "PYTHONPATH": str(installed), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-m", "fl_lightning", *argv],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_a_recipe_and_a_preset_are_found_by_name_and_train_on_two_ranks(installed, tmp_path):
    table = "--config", "fedssg/table4", "--data", "digits", "--model.hidden", "8"
    small = "--clients", "10", "--rounds", "1", "--local-epochs", "1", "--algorithm", "scaffold"
    ranks = "--accelerator", "cpu", "--devices", "2"
    done = fl_lightning(installed, tmp_path, "run", "digits", *table, *small, *ranks)
    assert done.returncode == 0, done.stderr
    assert "2 ranks of " in done.stdout
    config = (tmp_path / "runs/digits/scaffold-0/config.yaml").read_text()
    assert "correction_lr: base" in config, "the preset's row for scaffold"


def test_a_recipe_of_the_user_may_import_its_neighbor(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "its_neighbor.py").write_text("WORD = 'trained'\n")
    text = "import sys, its_neighbor\nprint(its_neighbor.WORD, sys.argv[1:])\n"
    (tmp_path / "mine.py").write_text(text)
    main(["run", "mine.py", "--x"])
    assert "trained ['--x']" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--version"], ["fl-lightning 0"]),
        (["--help"], ["run", "list", "show", "compare"]),
        (["run"], ["digits", "papers", "scikit-learn"]),
    ],
)
def test_first_answers_do_not_wait_for_torch(argv, words, installed, tmp_path):
    (tmp_path / "torch.py").write_text("raise ImportError('torch is slow to import')\n")
    done = fl_lightning(installed, tmp_path, *argv)
    assert all(word in done.stdout for word in words), done.stderr


@pytest.mark.parametrize("argv", [["train"], ["run", "digts"]])
def test_unknown_names_are_refused(argv, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(argv)
    assert argv[-1] in capsys.readouterr().err


def test_make_refuses_an_old_python_before_it_makes_an_environment(tmp_path):
    """A Mac's own is 3.9, and a second try would find its environment."""
    old = f"{sys.executable} -c 'import sys; sys.version_info = 3, 9; exec(sys.argv[-1])'"
    for name in ("Makefile", "pyproject.toml", "setup.cfg"):
        shutil.copy(ROOT / name, tmp_path)
    make = ["make", "demo", f"PYTHON={old}"]
    done = subprocess.run(make, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode, done.stdout
    assert "this is Python 3.9, and 3.11 or newer is needed" in done.stderr
    assert not (tmp_path / ".venv").exists()


def test_a_reader_that_ends_early_ends_the_command_in_silence(installed, tmp_path):
    command = f"set -o pipefail; PYTHONPATH={installed} {sys.executable} -m fl_lightning run | true"
    done = subprocess.run(
        ["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")


def test_a_command_works_where_characters_or_outputs_are_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "made", SimpleNamespace(main=lambda argv: print("50 ± 1")))
    monkeypatch.setitem(command.COMMANDS, "compare", "made:main")
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), "ascii"))
    monkeypatch.setattr(sys, "stderr", None)  # as under `2>&-`
    main(["compare", "runs"])
    sys.stdout.seek(0)
    assert sys.stdout.read() == "50 \\xb1 1\n"
    monkeypatch.setattr(sys, "stdout", None)
    main(["compare", "runs"])
