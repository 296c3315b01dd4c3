"""The files of a run's folder, its lock, and the options that a resumption may change."""

import shutil
from contextlib import suppress
from pathlib import Path

import jobs
import pytest
from refusals import experiment, scaffold, sentence

from fl_lightning.errors import UserError
from fl_lightning.runs import folder as run_folder
from fl_lightning.runs.config import Config
from fl_lightning.runs.folder import LOCK, open_run, share_lock, take_lock
from fl_lightning.runs.loggers import MetricsCSV
from fl_lightning.runs.scalars import read_scalars


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


@pytest.mark.parametrize("callback", ["personal_scores", "personal_weights"])
def test_who_scores_or_writes_own_models_gets_no_advice_to_score_them(callback, tmp_path, capsys):
    argv = "--algorithm", "local_only", "--rounds", "2", "--callback", callback
    experiment(tmp_path / "run", *argv).run()
    said = capsys.readouterr().out
    assert "--finetune-epochs" not in said
    own = [
        line for line in said.splitlines() if line.startswith("own models, accuracy, mean ± std")
    ]
    assert len(own) == (callback == "personal_scores")


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


@pytest.mark.parametrize("lock", [take_lock, share_lock])
def test_a_second_run_in_the_same_folder_is_refused(lock, tmp_path, sentence):
    """Whether the first rank of the other run is alive or another one that outlives it."""
    folder = tmp_path / "run"
    scaffold(folder, "--rounds", "1")
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != LOCK]
    before = [path.read_bytes() for path in files]
    with lock(folder):
        for resume in ([], ["--resume"]):
            assert "a run is at work in" in sentence(scaffold, folder, *resume)
    assert [path.read_bytes() for path in files] == before
    scaffold(folder, "--resume", "--rounds", "1")


def test_of_two_runs_that_start_in_a_new_folder_one_is_refused(tmp_path, sentence):
    with take_lock(tmp_path / "new"):
        assert "a run is at work in" in sentence(scaffold, tmp_path / "new")
    scaffold(tmp_path / "new", "--rounds", "1")


class Begins:
    """Somebody who deletes the folder of a run in its second round, and begins another there."""

    def __init__(self, folder: Path):
        self.folder = folder

    def on_round_end(self, federation, metrics):
        if federation.round == 2:
            shutil.rmtree(self.folder)
            take_lock(self.folder).close()
            (self.folder / LOCK).write_text("1 on another machine")
            (self.folder / "metrics.csv").write_text("another run's")


def test_a_run_writes_no_round_into_the_folder_of_another_one(tmp_path, sentence):
    folder = tmp_path / "run"
    said = sentence(scaffold, folder, callbacks=[Begins(folder)])
    assert "another run has begun in it (1 on another machine)" in said
    assert (folder / "metrics.csv").read_text() == "another run's"
    assert not (folder / "checkpoints").exists()


def test_the_ranks_of_one_run_share_the_lock(tmp_path):
    def taken() -> bool:
        with suppress(ValueError), take_lock(tmp_path):
            return False
        return True

    for holder in take_lock(tmp_path), share_lock(tmp_path):
        assert taken()
        holder.close()
    assert not taken()


DAMAGES = {
    "the last row is missing": (3, lambda text: "".join(text.splitlines(True)[:-1])),
    "half of the last row is missing": (3, lambda text: text[:-8]),
    "the number of a round is another": (2, lambda text: text.replace("\n2,", "\n6,")),
    "a score is no number": (2, lambda text: text.replace("0.2", "0/2")),
    "the header is missing": (1, lambda text: text.partition("\n")[2]),
    "the file is empty": (1, lambda text: ""),
}


def written(path: Path) -> str:
    logger = MetricsCSV(path)
    for k in (1, 2, 3):
        logger.log_metrics({"test/accuracy": k / 10, "test/loss": 1.0}, k)
    return path.read_text()


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_saved_row_that_is_lost_or_damaged_is_named_and_the_file_kept(damage, tmp_path):
    path, (lost, change) = tmp_path / "metrics.csv", DAMAGES[damage]
    path.write_text(left := change(written(path)))
    with pytest.raises(UserError, match=f"round {lost} of 3"):
        MetricsCSV(path, after=3)
    assert path.read_text() == left


def test_a_table_that_is_gone_is_named(tmp_path):
    with pytest.raises(UserError, match="round 1 of 3"):
        MetricsCSV(tmp_path / "metrics.csv", after=3)


def test_a_round_that_is_logged_twice_is_added_to_without_the_rows_before(tmp_path):
    path = tmp_path / "metrics.csv"
    logger = MetricsCSV(path)
    logger.log_metrics({"mine": 0.125, "test/loss": 2.0}, 1)
    with path.open() as file:  # another one as soon as the table is written anew
        for k in (2, 3):
            logger.log_metrics({"mine": k / 3}, k)
            logger.log_metrics({"mine": 0.5, "test/loss": float(k)}, k)
        assert file.read() == path.read_text()
    assert read_scalars(path) == {
        "mine": {1: 0.125, 2: 0.5, 3: 0.5},
        "test/loss": {1: 2.0, 2: 2.0, 3: 3.0},
    }


def test_rows_after_those_that_are_saved_are_dropped(tmp_path):
    path = tmp_path / "metrics.csv"
    path.write_text(written(path)[:-4])
    MetricsCSV(path, after=2).log_metrics({"test/accuracy": 0.5}, 3)
    assert read_scalars(path)["test/accuracy"] == {1: 0.1, 2: 0.2, 3: 0.5}


def test_scores_of_a_last_round_go_when_another_follows(tmp_path):
    path = tmp_path / "metrics.csv"
    logger = MetricsCSV(path)
    logger.log_metrics({"a": 1.0, "b": 2.0}, 1)
    logger.log_metrics({"personal/accuracy_1": 0.5}, 1)
    MetricsCSV(path, 1, ["b"]).log_metrics({"a": 3.0, "c": 4.0}, 2)
    kept = {"a": {1: 1.0, 2: 3.0}, "b": {}, "personal/accuracy_1": {}, "c": {2: 4.0}}
    assert read_scalars(path) == kept
