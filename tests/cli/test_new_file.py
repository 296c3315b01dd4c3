"""What `fl-lightning new` writes runs at once."""

from pathlib import Path
from shlex import split

import pytest

from fl_lightning.__main__ import main

SMALL = ["--rounds", "2", "--clients", "4", "--local-epochs", "1"]


@pytest.mark.parametrize("kind", ["algorithm", "callback", "data", "recipe"])
def test_a_new_file_runs_as_it_says(kind, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    main(["new", kind, "my own.py"])
    command = split(capsys.readouterr().out.splitlines()[2])
    assert command[:2] in (["fl-lightning", "run"], ["python", "my own.py"])
    main(["run", *command[2 if "run" in command else 1 :], *SMALL])
    assert "round 2/2" in capsys.readouterr().out


def test_no_file_is_overwritten(tmp_path, capsys):
    (tmp_path / "mine.py").write_text("mine")
    with pytest.raises(SystemExit) as stop:
        main(["new", "data", str(tmp_path / "mine.py")])
    assert stop.value.code == 2
    assert "there already" in capsys.readouterr().err
    assert Path(tmp_path, "mine.py").read_text() == "mine"
