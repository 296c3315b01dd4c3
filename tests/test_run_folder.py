"""What the run's folder tells of a run, and what a resumption may change."""

import subprocess
from pathlib import Path

import pytest

from fl_lightning.options import refuse_changes
from fl_lightning.run_folder import _git_commit


def test_the_commit_is_that_of_the_package_and_of_no_repository_around_it(tmp_path: Path) -> None:
    inside = tmp_path / ".venv" / "installed.py"
    inside.parent.mkdir()
    for file in (tmp_path / "own.py", inside):
        file.write_text("")

    def git(*command: str) -> None:
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *command], cwd=tmp_path, check=True)

    git("init", "--quiet")
    assert _git_commit(tmp_path / "own.py") is None
    git("add", "own.py")
    git("commit", "--quiet", "--message", "first")
    assert len(_git_commit(tmp_path / "own.py") or "") == 40
    assert _git_commit(inside) is None


@pytest.mark.parametrize("change", [{"executor": "stacked"}, {"width": 5}, {"compile": True}], ids=str)
def test_a_deterministic_run_keeps_what_its_last_bits_depend_on(change: dict[str, object]) -> None:
    before = {"executor": "auto", "width": 10, "compile": False, "rounds": 5, "deterministic": False}
    refuse_changes(before, {**before, **change, "rounds": 9})
    before["deterministic"] = True
    refuse_changes(before, {**before, "rounds": 9})
    with pytest.raises(ValueError, match=f"a resumed run keeps its options, but {next(iter(change))} was"):
        refuse_changes(before, {**before, **change})
