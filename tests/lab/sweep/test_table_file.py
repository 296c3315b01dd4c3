"""What a table cannot mean is refused before a run is made; processes of the runs."""

from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tables import METHODS, SMALL, finished

from fl_lightning.__main__ import main
from fl_lightning.errors import UserError
from fl_lightning.lab.commands.table import TableOptions
from fl_lightning.lab.sweep import pool


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("columns: [a]\n", ["columns", "['a']"]),
        ("published: {fedsamm: 3}\n", ["fedsamm", "fedsam"]),
        ("published: {fedsam: {a: 3}}\n", ["fedsam", "'a'"]),
        ("columns: {a: {}, b: {}}\npublished: {fedsam: [3]}\n", ["1 numbers", "2 columns"]),
        ("columns: {a: 0.1}\n", ["columns.a", "0.1"]),
        ("columns: {a: {methods: {fedsma: {}}}}\n", ["'fedsma'", "fedsam"]),
        ("rows: {a: fedavg}\n", ["rows.a", "'fedavg'"]),
        ("rows: {Fedsamm: {}}\n", ["'Fedsamm'", "fedsam"]),
        ("methods: [fedavg]\n", ["methods", "['fedavg']"]),
        ("over: fedagv\n", ["'fedagv'", "fedavg"]),
        ("spread: round\n", ["'round'", "rounds"]),
        ("columns: {a: {methods: {fedsam: 1}}}\n", ["columns.a.methods.fedsam", "1"]),
        ("columns: {a: {}}\npublished: {fedsam: [[3]]}\n", ["published.fedsam", "[3]"]),
        ("columns: {a: {}}\npublished: {fedsam: [x]}\n", ["published.fedsam", "'x'"]),
        ("published: {1: 3}\n", ["published.1"]),
        ("published: {last: 3}\n", ["published.last", "3"]),
        ("seeds: []\n", ["seed"]),
        ("sweep: {lr: []}\n", ["sweep", "lr"]),
        ("means: {avg: z*}\n", ["means.avg", "'z*'"]),
        ("columns: {a: {}}\nmeans: {a: '*'}\n", ["means.a"]),
        ("score: lats\n", ["lats"]),
        ("seed: 5\n", ["seed", "seeds"]),
        ("devices: 2\n", ["devices", "--jobs"]),
        ("rows: {fedavg: {seed: 5}}\n", ["rows.fedavg", "seed"]),
        ("columns: {a: {run_dir: x}}\n", ["columns.a", "run_dir", "--runs"]),
        ("columns: {a: {methods: {fedavg: {resume: true}}}}\n", ["fedavg", "resume"]),
        ("sweep: {seed: [0, 1]}\n", ["sweep", "seed", "seeds"]),
        ("columns: {a: {lr: 0.1}}\nsweep: {lr: [0.2]}\n", ["columns", "sweep", "lr"]),
        ("rows: {fedavg: {lr: 0.1}}\ncolumns: {a: {lr: 0.3}}\n", ["rows", "columns", "lr"]),
        ("sweep: {lr: [0.1]}\ntune: {lr: [0.2]}\n", ["sweep", "tune", "lr"]),
        ("rows: {fedavg: {lr: 0.1, tune: {lr: [0.2]}}}\n", ["rows.fedavg.tune", "lr"]),
        ("tune_seeds: [1]\n", ["tune_seeds", "tune"]),
        ("sweep: {on_divergence: [stop, continue]}\n", ["fedavg, on_divergence", "--runs"]),
        ("rows: {a b: {lr: 0.1}, a  b: {lr: 0.2}}\nalgorithm: fedavg\n", ["rows", "'a b'"]),
        ("columns: {1: {lr: 0.1}, '1': {lr: 0.2}}\n", ["columns", "'1'"]),
    ],
)
def test_what_a_table_cannot_mean_is_refused(text, words, planned):
    with pytest.raises(ValueError) as error:  # noqa: PT011
        planned(text if text.startswith("methods: ") else METHODS + text)
    assert all(word in str(error.value) for word in words)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--seed", "3"], ["--seed", "--seeds"]),
        (["--methods", "fedsamm"], ["'fedsamm'"]),
        (["--algorithm", "scaffold"], ["--algorithm", "--methods"]),
        (["--score", "best,lats"], ["lats"]),
        (["--over", "fedagv"], ["'fedagv'", "fedavg"]),
        (["--rounts", "3"], ["--rounts", "--rounds"]),
        (["--recipe", "digts"], ["'digts'"]),
        (["--shard", "3/2"], ["3/2"]),
        (["--sweep", "batch-size=8,16", "--batch-size", "4"], ["sweep", "--batch-size"]),
        (["--tune", "lr=0.1,0.2", "--lr=0.3"], ["tune", "--lr"]),
    ],
)
def test_options_of_the_command_are_checked(argv, words, tmp_path, sentence):
    file = tmp_path / "table.yaml"
    file.write_text(SMALL + METHODS)
    text = sentence(main, ["table", str(file), "--recipe", "digits", "--dry-run", *argv])
    assert all(word in text for word in words)


def test_options_before_the_table_are_refused(sentence):
    assert "the table comes first" in sentence(main, ["table", "--seeds", "0", "mine.yaml"])


def test_a_table_without_rows_is_refused_unless_the_command_names_some(tmp_path, sentence):
    file = tmp_path / "table.yaml"
    file.write_text(SMALL + "algorithm: fedavg\nsweep: {lr: [0.1, 0.3]}\n")
    assert "--methods" in sentence(main, ["table", str(file)])
    assert [*TableOptions(str(file), methods=("fedsam",)).read().rows] == ["fedsam"]


def test_a_label_fits_itself_whatever_its_characters(tmp_path):
    label = "a [b]"
    (tmp_path / "table.yaml").write_text(
        f"{METHODS}columns: {{{label!r}: {{}}, c: {{lr: 0.3}}}}\nmeans: {{mean: [{label!r}]}}\n"
    )
    table = TableOptions(str(tmp_path / "table.yaml"), columns=(label,)).read()
    assert ([*table.columns], [*table.means]) == ([label], ["mean"])


def test_an_option_that_is_swept_twice_has_all_values(tmp_path):
    (tmp_path / "table.yaml").write_text(SMALL + METHODS)
    values = "lr=0.1", "momentum=0.9", "lr=0.3"
    table = TableOptions(str(tmp_path / "table.yaml"), sweep=values).read()
    assert table.column_labels == ["lr 0.1, momentum 0.9", "lr 0.3, momentum 0.9"]


def test_every_table_locks_logs_in_one_order_and_each_once(tmp_path, monkeypatch):
    locked = list[str]()
    monkeypatch.setattr(pool.fcntl, "flock", lambda file, _: locked.append(Path(file.name).name))
    stack: Any = [SimpleNamespace(log=tmp_path / name) for name in ("2", "1", "2")]
    with ExitStack() as opened:
        logs = pool._logs(stack, opened)
        assert locked == ["1", "2"]
        assert [Path(log.name).name for log in logs] == ["2", "1", "2"]


def test_a_run_does_not_begin_in_a_folder_that_another_table_has_taken_since(planned):
    (job, _), (other, _) = planned(SMALL + METHODS), planned(SMALL + METHODS, "--clients", "5")
    finished(other, 0.5, 0.6)
    with pytest.raises(UserError, match="give the command again"):
        job.run()


def test_a_run_does_not_begin_once_a_file_of_its_table_was_edited(planned, tmp_path):
    (job, _) = planned(SMALL + METHODS)
    (tmp_path / "table.yaml").write_text(SMALL + METHODS + "batch_size: 7\n")
    with pytest.raises(UserError, match="batch_size was 16 and is now 7"):
        job.run()
    assert job.state == "missing"
