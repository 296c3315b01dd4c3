"""Runs loaded from their folders."""

from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from run_folders import run

from fl_lightning.lab import report
from fl_lightning.lab.report import Run


def test_a_data_frame_has_a_row_per_run_and_round(tmp_path):
    run(tmp_path / "a", [0.5, 0.7], seed=0, hidden=[200, 100], clip_norm=None)
    run(tmp_path / "b", [0.7, None], seed=1, hidden=[200, 100], clip_norm=10.0)
    run(tmp_path / "c", [0.1], algorithm="fedsam", own={"rho": 0.3})
    runs = report.load(tmp_path)
    front = ["run", "method", "algorithm", "partition", "partition.alpha", "rounds", "seed"]
    assert [*runs.columns[:7]] == front
    assert runs["run"].tolist() == [str(tmp_path / name) for name in "aabbc"]
    assert runs["round"].tolist() == [1, 2, 1, 2, 1]
    assert runs["hidden"][0] == (200, 100)
    assert runs["partition.alpha"].dtype == float
    assert runs.loc[runs["algorithm.rho"] > 0.2, "test/accuracy"].tolist() == [0.1]
    assert runs["test/accuracy"].isna().tolist() == [False, False, False, True, False]
    assert len(report.load([tmp_path / "a", str(tmp_path / "c")])) == 3


def test_the_example_of_load_draws_means_over_seeds(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run(Path("runs/digits/a"), [0.5, 0.7], seed=0)
    run(Path("runs/digits/b"), [0.7, None], seed=1)
    names: dict[str, Any] = {}
    exec(dedent((report.load.__doc__ or "").partition("Example::")[2]), names)
    assert names["means"]["fedavg"].tolist() == [pytest.approx(0.6), 0.7]
    assert Path("curves.png").is_file()


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("config.yaml", "algorithm: ["),
        ("config.yaml", "lr: 0.1"),
        ("metrics.csv", "a,b\n1,2\n"),
        ("metrics.csv", "round,test/accuracy\n1,x\n"),
    ],
)
def test_a_run_that_cannot_be_read_is_named_and_left_out(file, content, tmp_path):
    run(tmp_path / "whole", [0.5])
    (run(tmp_path / "torn", [0.5]) / file).write_text(content)
    with pytest.warns(UserWarning, match="torn holds no run that can be read"):
        runs = report.load(tmp_path)
    assert runs["run"].tolist() == [str(tmp_path / "whole")]


def test_runs_in_folders_that_are_links_are_found_once(tmp_path):
    run(tmp_path / "disk/digits/a", [0.5], seed=0)
    run(tmp_path / "runs/b", [0.6], seed=1)
    for name, place in ("more", "../disk"), ("again", "more/digits"), ("loop", "."):
        (tmp_path / "runs" / name).symlink_to(place)
    assert report.load(tmp_path / "runs")["seed"].tolist() == [0, 1]


def test_no_folders_is_one_sentence():
    with pytest.raises(ValueError, match="no folders"):
        report.load_runs([])


def test_a_line_that_is_being_written_does_not_count(tmp_path):
    table = run(tmp_path / "a", [0.5, 0.6]) / "metrics.csv"
    table.write_text(table.read_text() + "3,0.9")
    assert Run.read(tmp_path / "a").scalars["test/accuracy"] == {1: 0.5, 2: 0.6}
