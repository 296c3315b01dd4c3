"""`fl-lightning partition`: partitions as a table, a figure and counts."""

import os
from errno import ENOSPC
from pathlib import Path
from unittest.mock import Mock

import pandas as pd
import pytest
import torch

from fl_lightning.__main__ import main
from fl_lightning.data import schemes, sources
from fl_lightning.lab.commands.partition import Scheme, figure
from fl_lightning.runs.run import Run

RUN = "--rounds 1 --local-steps 1 --algorithm fedavg --accelerator cpu --run-dir run"


def test_the_numbers_of_a_scheme():
    counts = torch.tensor([[4, 0], [2, 2], [0, 0], [0, 2]])
    scheme = Scheme("mine", counts, ("a", "b"))
    _, held, distances = scheme.measures
    assert held.tolist() == [1, 2, 0, 1]
    assert distances.tolist() == pytest.approx([0.4, 0.1, 0.6])  # 60% are of class a
    cells = ["mine", "4", "10", "0", "3", "4", "1.0", "0.367 (max 0.600)"]
    assert [*scheme.row().values()] == cells


def test_targets_that_are_no_classes_have_sizes_alone(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rows = ["x,y,site", *(f"{k},{k / 7},{k % 3}" for k in range(40))]
    Path("rows.csv").write_text("\n".join(rows))
    argv = "tabular --data rows.csv --data.target y --data.clients site --figure sizes.png"
    main(["partition", *argv.split(), "--csv", "counts.csv"])
    head, _, cells = capsys.readouterr().out.splitlines()[:3]
    assert head == "| partition | clients | samples | smallest | median | largest |"
    sizes = pd.read_csv("counts.csv")["samples"]
    whole = (
        f"| by_domain | 3 | {sizes.sum()} | {sizes.min()} | {sizes.median():g} | {sizes.max()} |"
    )
    assert cells == whole


def test_several_schemes_are_shown_next_to_each_other(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    files = "--figure", "heat.png", "--csv", "counts.csv"
    groups = "-- --partition.alpha 0.1 -- --partition.alpha 1 --seed 1 -- --partition iid"
    main(["partition", "digits", "--clients", "30", *files, *groups.split()])
    said = capsys.readouterr().out
    labels = ["dirichlet, alpha 0.1, seed 0", "dirichlet, alpha 1.0, seed 1", "iid"]
    assert all(label in said for label in labels)
    counts = pd.read_csv("counts.csv")
    assert [*counts["partition"].unique()] == labels
    train, _ = sources.digits()
    expected = schemes.dirichlet(train.y, 30, 1, alpha=1.0).histogram(train.y, 10)
    mine = counts[counts["partition"] == labels[1]].drop(columns=["partition", "client"])
    assert mine.to_numpy().tolist() == expected.tolist()
    assert (tmp_path / "heat.png").stat().st_size > 10_000
    assert not (tmp_path / "runs").exists()


def test_the_recipe_of_a_table_has_its_data(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("table.yaml").write_text("recipe: digits\nclients: 6\nrows: {fedavg: {}}\n")
    main(["partition", "--config", "table.yaml"])
    assert "| 6 | 1,437 |" in capsys.readouterr().out


def test_samples_that_are_held_out_for_validation_are_not_shown(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    main(["partition", "digits", "--clients", "6", "--validation", "0.2", "--csv", "counts.csv"])
    shown = pd.read_csv("counts.csv").drop(columns=["partition", "client"])
    main(["run", "digits", "--clients", "6", "--validation", "0.2", *RUN.split()])
    trained, (train, _) = Run.read(Path("run")).partition(), sources.digits()
    assert shown.to_numpy().tolist() == trained.histogram(train.y, 10).tolist()


def test_the_figure_has_a_column_for_each_scheme():
    counts = torch.arange(12).view(4, 3)
    drawn = figure([Scheme(name, counts, tuple("abc")) for name in ("one", "two")])
    titles = [axes.get_title() for axes in drawn.axes if axes.get_title()]
    assert titles == ["one", "two"]
    heat = drawn.axes[0].images[0].get_array()
    assert torch.from_numpy(heat.data).equal(counts.T)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ("digits --partition irid", "'irid'"),
        ("digits --clients 5000", "5000 clients"),
        ("digits --figur heat.png", "--figur"),
        ("digits --figure heat.doc", "heat.doc"),
        ("sam_in_lightning", "makes no experiment"),
    ],
)
def test_a_mistake_is_one_sentence(argv, words, sentence, monkeypatch):
    if argv.startswith("sam"):
        monkeypatch.setattr("runpy.run_path", lambda *_, **__: None)
    assert words in sentence(main, ["partition", *argv.split()])


@pytest.mark.parametrize(("option", "name"), [("--figure", "heat.png"), ("--csv", "counts.csv")])
def test_a_full_disk_is_reported_and_leaves_the_file_as_it_was(
    option, name, tmp_path, sentence, monkeypatch
):
    file = tmp_path / name
    file.write_text("before")
    monkeypatch.setattr(os, "fsync", Mock(side_effect=OSError(ENOSPC, os.strerror(ENOSPC))))
    said = sentence(main, ["partition", "digits", option, str(file)])
    assert f"{file} cannot be written (No space left on device)" in said
    assert file.read_text() == "before"
