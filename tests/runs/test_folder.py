"""What the run's folder tells of a run, and what a resumption may change."""

import subprocess
from pathlib import Path

import pytest
import runs
from refusals import experiment, sentence

from fl_lightning.runs import folder as run_folder
from fl_lightning.runs.folder import RunFolder, _git_commit
from fl_lightning.runs.resume import check_changes


def test_the_commit_is_that_of_the_package_and_of_no_repository_around_it(tmp_path: Path) -> None:
    inside = tmp_path / ".venv" / "installed.py"
    inside.parent.mkdir()
    for file in (tmp_path / "own.py", inside):
        file.write_text("")

    def git(*command: str) -> None:
        subprocess.run(
            ["git", "-c", "user.name=a", "-c", "user.email=a@b", *command], cwd=tmp_path, check=True
        )

    git("init", "--quiet")
    assert _git_commit(tmp_path / "own.py") is None
    git("add", "own.py")
    git("commit", "--quiet", "--message", "first")
    assert len(_git_commit(tmp_path / "own.py") or "") == 40
    assert _git_commit(inside) is None


@pytest.mark.parametrize(
    "change", [{"executor": "stacked"}, {"parallel_clients": 5}, {"compile": True}], ids=str
)
def test_a_deterministic_run_keeps_what_its_last_bits_depend_on(change: dict[str, object]) -> None:
    before = {
        "executor": "auto",
        "parallel_clients": 10,
        "compile": False,
        "rounds": 5,
        "deterministic": False,
    }
    check_changes(before, {**before, **change, "rounds": 9})
    before["deterministic"] = True
    check_changes(before, {**before, "rounds": 9})
    with pytest.raises(
        ValueError, match=f"a resumed run keeps its options, but {next(iter(change))} was"
    ):
        check_changes(before, {**before, **change})


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


def test_a_run_that_sends_nothing_ends_with_what_it_trains(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The global model is as it was drawn: its accuracy is no result."""

    def last_words(*argv: str) -> list[str]:
        experiment(tmp_path / "run", "--rounds", "2", *argv).run()
        return capsys.readouterr().out.splitlines()

    said = last_words("--algorithm", "local_only")
    assert said[-4].startswith(
        "clients send nothing: the global model is untrained, at a test accuracy of "
    )
    assert (
        said[-3]
        == f"to score clients' own models: --run-dir {tmp_path / 'run'} --resume --finetune-epochs 1,5"
    )
    assert not any(line.startswith("round") and "accuracy" in line for line in said)
    assert not any(line.startswith(("test accuracy", "model:")) for line in said)
    said = last_words("--resume", "--finetune-epochs", "1")
    assert said[-4].startswith("clients send nothing")
    assert said[-3].startswith("own models, mean ± spread over clients: ")


ODD = {
    "metrics.csv": (b"\xff\x00\xfe" * 50, ""),
    "environment.yaml": (b"{a: [", ""),
    "checkpoints/round-1-copy.ckpt": (b"of my own", ""),
    "config.yaml": (b"", "config.yaml is damaged: put there the options of the run"),
}
"""What lies in a folder after a machine's bad end, or a user's good intentions; and why it cannot be gone on there."""


@pytest.mark.parametrize("name", ODD)
def test_odd_files_in_a_folder_are_overlooked_or_told(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content, told = ODD[name]
    experiment(tmp_path / "run").run()
    (tmp_path / "run" / name).write_bytes(content)
    resumed = experiment(tmp_path / "run", "--resume", "--rounds", "2")
    if told:
        assert told in sentence(capsys, resumed.run)
        return
    resumed.run()
    assert runs.results(tmp_path / "run")["metrics"][-1]["round"] == "2"


def test_files_of_the_users_are_kept_and_a_changed_one_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    own = Path("mine/own.py")
    own.parent.mkdir()
    own.write_text("from fl_lightning.algorithms import fedsam\n")
    argv = "--algorithm", "mine/own.py:fedsam"
    experiment(Path("run"), *argv).run()
    experiment(Path("run"), "--resume", "--rounds", "2").run()
    assert "is not what it was" not in capsys.readouterr().out
    own.write_text(own.read_text() + "# changed\n")
    experiment(Path("run"), "--resume", "--rounds", "3").run()
    assert "mine/own.py is not what it was when the run began (run/own)" in capsys.readouterr().out
    assert "changed" not in Path("run/own/mine_own.py").read_text()
    assert "changed" in Path("run/own/mine_own-from-round-3.py").read_text()
