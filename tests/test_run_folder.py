"""What the run's folder tells of a run, and what a resumption may change."""

import subprocess
from pathlib import Path

import pytest

from fl_lightning import run_folder
from fl_lightning.options import refuse_changes
from fl_lightning.run_folder import RunFolder, _git_commit


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


@pytest.mark.parametrize("first", [True, False])
def test_every_rank_refuses_a_folder_that_holds_a_run(
    first: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that SLURM started would wait for the first one."""
    monkeypatch.setattr(run_folder, "is_first_rank", lambda: first)
    (tmp_path / "config.yaml").write_text("rounds: 3")
    refused = pytest.raises(ValueError, match="holds a run already")
    with refused, RunFolder.open(tmp_path, "fedavg", {}, resume=False):
        pass
