"""The files of a run's folder, and the options that a resumption may change."""

from pathlib import Path

import jobs
import pytest
from refusals import experiment, sentence

from fl_lightning.runs import folder as run_folder
from fl_lightning.runs.config import Config
from fl_lightning.runs.folder import open_run


@pytest.mark.parametrize("first", [True, False])
def test_every_rank_refuses_a_folder_that_holds_a_run(first, tmp_path, monkeypatch):
    """Ranks that SLURM started would wait for the first one."""
    monkeypatch.setattr(run_folder, "is_first_rank", lambda: first)
    (tmp_path / "config.yaml").write_text("rounds: 3")
    refused = pytest.raises(ValueError, match="holds a run already")
    with refused, open_run(tmp_path, "fedavg", Config(), resume=False):
        pass


def test_a_run_that_sends_nothing_ends_without_the_global_model(tmp_path, capsys):
    """It is untrained: its accuracy is no result."""

    def last_lines(*argv: str) -> list[str]:
        experiment(tmp_path / "run", "--rounds", "2", *argv).run()
        return capsys.readouterr().out.splitlines()

    said = last_lines("--algorithm", "local_only")
    assert said[-4].startswith("clients send nothing: the global model is untrained")
    assert said[-3].endswith(f"--run-dir {tmp_path / 'run'} --resume --finetune-epochs 1,5")
    assert not any(line.startswith("round") and "accuracy" in line for line in said)
    assert not any(line.startswith(("test accuracy", "model:")) for line in said)
    said = last_lines("--resume", "--finetune-epochs", "1")
    assert said[-4].startswith("clients send nothing")
    assert said[-3].startswith("personal models, mean ± std: ")


ODD = {
    "metrics.csv": (b"\xff\x00\xfe" * 50, "metrics.csv lacks round 1"),
    "environment.yaml": (b"{a: [", ""),
    "checkpoints/round-1-copy.ckpt": (b"a user's", ""),
    "config.yaml": (b"", "config.yaml is damaged"),
}
"""Files after a crash of the machine, or of a user; and the error of a resumption, if any."""


@pytest.mark.parametrize("name", ODD)
def test_odd_files_are_ignored_or_reported(name, tmp_path, capsys):
    content, message = ODD[name]
    experiment(tmp_path / "run").run()
    (tmp_path / "run" / name).write_bytes(content)
    resumed = experiment(tmp_path / "run", "--resume", "--rounds", "2")
    if message:
        assert message in sentence(capsys, resumed.run)
        return
    resumed.run()
    assert jobs.results(tmp_path / "run")["metrics"][-1]["round"] == "2"


def test_user_files_are_copied_and_a_changed_one_is_reported(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    own, copies = Path("mine/own.py"), Path("run/own")
    own.parent.mkdir()
    own.write_text("from fl_lightning.algorithms import fedsam\n")
    argv = "--algorithm", "mine/own.py:fedsam"
    experiment(Path("run"), *argv).run()
    experiment(Path("run"), "--resume", "--rounds", "2").run()
    assert "mine/own.py" not in capsys.readouterr().out.replace("mine/own.py:fedsam", "")
    own.write_text(own.read_text() + "# changed\n")
    experiment(Path("run"), "--resume", "--rounds", "3").run()
    assert "mine/own.py " in capsys.readouterr().out
    assert "changed" not in (copies / "mine/own.py").read_text()
    assert "changed" in (copies / "mine/own-from-round-3.py").read_text()


@pytest.mark.parametrize("name", ["model.pt", "best.pt", "metrics.csv"])
def test_a_file_in_a_folder_without_a_run_is_not_written_over(name, tmp_path, capsys):
    (tmp_path / name).write_text("a user's")
    assert name in sentence(capsys, experiment(tmp_path).run)
    assert [path.name for path in tmp_path.iterdir() if path.name != ".lock"] == [name]
    assert (tmp_path / name).read_text() == "a user's"


def test_a_tilde_is_the_home_folder(tmp_path, monkeypatch):
    """Also for a resumption and a file of options."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text("data_dir: ~/data\n")
    first = experiment(Path("~/run"), "--config=~/mine.yaml")
    first.run()
    assert first.options.data_dir == tmp_path / "data"
    assert (tmp_path / "run/model.pt").exists()
    assert experiment(Path("~/run"), "--resume").options.data_dir == tmp_path / "data"
    assert not Path("~").exists()


def test_an_empty_run_dir_is_refused(capsys):
    assert "--run-dir" in sentence(capsys, jobs.experiment, "--run-dir", "")
