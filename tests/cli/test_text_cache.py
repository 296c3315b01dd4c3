"""The cache of what `list`, `show` and `--help` print."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from fl_lightning import __main__ as command
from fl_lightning.cli import text_cache


@pytest.fixture
def made(monkeypatch, tmp_path):
    """The texts that commands have made, which `list` and `show` print in this test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    made = []

    def print_text(argv):
        made.append(f"text {len(made)} of {argv}")
        print(made[-1])
        raise SystemExit("no" if "wrong" in argv else 0)

    monkeypatch.setitem(sys.modules, "made", SimpleNamespace(main=print_text))
    monkeypatch.setattr(command, "COMMANDS", {"list": "made:main", "show": "made:main"})
    return made


@pytest.fixture
def sources(monkeypatch, tmp_path):
    """A folder in place of the package."""
    folder = tmp_path / "fl_lightning"
    (folder / "cli").mkdir(parents=True)
    (folder / "core.py").write_text("a = 1\n")
    monkeypatch.setattr(text_cache, "__file__", str(folder / "cli" / "text_cache.py"))
    return folder


def printed(capsys, *argv):
    command.main(argv)
    return capsys.readouterr().out


def test_a_text_is_made_once(made, sources, capsys):
    first = printed(capsys, "show", "fedavg")
    assert printed(capsys, "show", "fedavg") == first == f"{made[0]}\n"
    assert printed(capsys, "show", "fedsam") != first
    assert len(made) == 2


@pytest.mark.parametrize("change", ["core.py", "new.py", "width", "version", "-OO"])
def test_a_text_is_made_again_after_a_change(change, made, sources, monkeypatch, capsys):
    before = printed(capsys, "list")
    if change == "width":
        monkeypatch.setenv("COLUMNS", "132")
    elif change == "-OO":
        monkeypatch.setattr(sys, "flags", SimpleNamespace(optimize=2))
    elif change == "version":
        monkeypatch.setattr(text_cache, "version", lambda package: f"{package} of tomorrow")
    else:
        (sources / change).write_text("a = 2\n")
    assert printed(capsys, "list") != before
    assert printed(capsys, "list") == f"{made[-1]}\n"
    assert len(made) == 2


def test_the_text_of_a_command_that_fails_is_printed_and_not_kept(made, sources, capsys):
    for number in range(2):
        with pytest.raises(SystemExit, match="no"):
            command.main(["show", "wrong"])
        assert capsys.readouterr().out == f"{made[number]}\n"


def test_a_folder_that_cannot_be_written_is_no_error(made, sources, monkeypatch, tmp_path, capsys):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert printed(capsys, "list") == f"{made[0]}\n"


def test_a_user_without_a_home_has_no_cache(made, sources, monkeypatch, tmp_path, capsys):
    """As in a container whose user is no more than a number."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(os.path, "expanduser", str)
    with pytest.raises(SystemExit, match="0"):
        command.main(["list"])
    assert capsys.readouterr().out == f"{made[0]}\n"
    assert not (tmp_path / "~").exists()


FIXED = "list; list --help; show FedLESAM-S; compare --help; run digits --help"
FIXED += "; run digits --algorithm fedsam -h"
OTHERS = "compare runs; show mine.py:make; run digits; run toy --help; run mine --help"
OTHERS += "; run digits --algorithm mine.py:make --help; run digits --config mine --help"
OTHERS += "; run digits --run-dir mine --resume --help; run mine.py --help"


@pytest.mark.parametrize("line", [*FIXED.split("; "), *OTHERS.split("; ")])
def test_only_texts_that_follow_from_the_package_alone_are_kept(line):
    assert text_cache.has_fixed_text(line.split()) is (line in FIXED.split("; "))


def test_a_kept_text_is_printed_without_torch(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    first = printed(capsys, "list")
    line = [sys.executable, "-X", "importtime", "-m", "fl_lightning", "list"]
    second = subprocess.run(line, capture_output=True, text=True)
    assert second.stdout == first
    assert "fl_lightning" in second.stderr
    assert " torch\n" not in second.stderr
