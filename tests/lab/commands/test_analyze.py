"""`fl-lightning analyze` on two short runs."""

import csv
import re
from dataclasses import replace
from pathlib import Path
from shutil import copytree
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from pandas import DataFrame, Series, read_csv

from fl_lightning.__main__ import main
from fl_lightning.data import matched_test_split, sources
from fl_lightning.data.row_sources import table
from fl_lightning.errors import UserError
from fl_lightning.experiment import Experiment
from fl_lightning.lab.analysis import predict
from fl_lightning.lab.commands import analyses
from fl_lightning.lab.commands.analyses import Subject, classes, clients, interpolate
from fl_lightning.models import mlp
from fl_lightning.runs.config import Config
from fl_lightning.runs.run import Run


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    for seed in "01":
        argv = "--run-dir", str(folder / seed), "--seed", seed, "--local-steps", "1"
        argv = *argv, "--model.hidden", "8", "--accelerator", "cpu"
        Experiment([sources.digits], [mlp], clients=5, rounds=1, argv=argv).run()
    return folder


KINDS = {
    "hessian": ("--samples 50 --top 2 --vectors 2 --steps 3", ["lambda_1", "lambda_2", "trace"]),
    "surface": ("--samples 50 --points 3", ["loss", "highest"]),
    "interpolate": ("--samples 50 --points 3", ["barrier"]),
    "features": ("--samples 40", ["silhouette"]),
    "classes": ("", ["class", "fedavg, seed 1"]),
    "clients": ("", ["clients", "worst 10 %"]),
}


@pytest.mark.parametrize("kind", KINDS)
def test_each_analysis_prints_a_table_and_draws(kind, runs, tmp_path, capsys):
    options, headings = KINDS[kind]
    files = tmp_path / "figure.png", tmp_path / "figure.pdf"
    figures = [word for file in files for word in ("--figure", str(file))]
    main(["analyze", kind, str(runs), *options.split(), *figures, "--format", "csv"])
    head, *rows = csv.reader(capsys.readouterr().out.splitlines())
    assert {*headings} <= {*head}
    assert len(rows) == {"interpolate": 1, "classes": 10}.get(kind, 2)
    assert files[0].read_bytes().startswith(b"\x89PNG")
    assert files[1].read_bytes().startswith(b"%PDF")


def test_the_best_model_the_split_and_hessian_axes_count(runs, capsys):
    def table(*options: str) -> str:
        main(["analyze", *options, "--format", "csv"])
        return capsys.readouterr().out

    one = str(runs / "0")
    assert table("clients", one) != table("clients", one, "--split", "train")
    few = "--samples", "30", "--points", "2"
    assert table("surface", one, *few) != table("surface", one, *few, "--axes", "hessian")
    state = torch.load(runs / "0/best.pt", weights_only=True)
    torch.save({name: 0 * t for name, t in state.items()}, runs / "0/best.pt")
    assert "2.302585" in table("surface", one, *few, "--best")


def test_clients_are_summed_up_over_all_of_them(runs, capsys):
    """The deviation is that of the population; 10 % of 5 clients is one client."""
    run = Run.read(runs / "0")
    (train, test), model = run.data(), run.model()
    counts = run.partition().histogram(train.y, 10)
    right = predict(model, test).right.double()
    own = Series(
        [float(right[index].mean()) for index in matched_test_split(test.y, counts, seed=0)]
    )
    main(["analyze", "clients", str(runs / "0"), "--format", "csv"])
    heading, values = csv.reader(capsys.readouterr().out.splitlines())
    shown = dict(zip(heading, values, strict=True))
    assert float(shown["deviation"]) == pytest.approx(100 * own.std(ddof=0))
    assert float(shown["worst 10 %"]) == pytest.approx(100 * own.min())


def test_clients_are_scored_on_their_own_test_samples_where_owners_are_known(runs, monkeypatch):
    run, names = Run.read(runs / "0"), tuple("abcde")
    (train, test), owners = run.data(), torch.arange(360) % 4  # the last client has none
    train = replace(train, domains=run.partition().owners(), domain_names=names)
    owned = train, replace(test, domains=owners, domain_names=names)
    monkeypatch.setattr(Run, "data", lambda run: owned)
    result, right = clients({"run": Subject(run, "test", "cpu")}), predict(run.model(), test).right
    own = Series([100 * right[owners == k].double().mean().item() for k in range(4)])
    assert result.numbers[["clients", "mean", "lowest"]].values.tolist() == [
        ["4", pytest.approx(own.mean()), pytest.approx(own.min())]
    ]
    assert result.caption.endswith("its own test samples")


def test_a_damaged_record_of_what_was_chosen_is_one_sentence(runs, tmp_path, sentence):
    damaged = copytree(runs / "0", tmp_path / "run") / "environment.yaml"
    damaged.write_text("{")
    assert str(damaged) in sentence(main, ["analyze", "classes", str(damaged.parent)])


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ("interpolate {0}", "two runs.*1"),
        ("surface {0} --points 1", "points.*1"),
        ("surface {0} --samples 0", "samples.*0"),
        ("classes {0}/nothing", "nothing"),
        ("classes {0} --figure no/such.png", "no/such.png"),
        ("classes {0} --figure figure.jpeg", "figure.jpeg"),
        ("poems {0}", "poems"),
    ],
)
def test_what_cannot_be_analyzed_is_one_sentence(argv, words, runs, sentence):
    assert re.search(words, sentence(main, ["analyze", *argv.format(runs / "0").split()]))


@pytest.mark.parametrize("outputs", [11, 10, 9])
def test_classes_are_those_of_the_data_whatever_the_outputs(outputs, runs):
    subject = Subject(Run.read(runs / "0"), "test", "cpu")
    keep = subject.data.y < outputs
    subject.__dict__["data"] = replace(subject.data, x=subject.data.x[keep], y=subject.data.y[keep])
    subject.__dict__["model"] = mlp(64, outputs, hidden=(8,))
    result = classes({"one": subject})
    accuracies = Series(subject.predictions().right.double()).groupby(subject.data.y.numpy()).mean()
    assert result.numbers["class"].tolist() == [*subject.data.classes]
    assert result.numbers["one"].dropna().tolist() == pytest.approx((100 * accuracies).tolist())
    result.draw()


def test_a_table_of_numbers_is_analyzed_by_its_own_loss_and_recorded_scores(tmp_path, capsys):
    frame = DataFrame({"a": range(40), "y": [0.1 * k for k in range(40)], "who": [0, 1, 2, 3] * 10})
    frame.to_csv(tmp_path / "file.csv", index=False)
    options = "--loss=mse", "--metric=mae", "--rounds=2", "--callback=client_scores:every=1"
    columns = "--data.target", "y", "--data.clients", "who", "--run-dir", str(tmp_path / "run")
    argv = ["--data", str(tmp_path / "file.csv"), *columns, *options]
    Experiment([table], [mlp], partition="by_domain", clients=None, argv=argv).run()
    run = Run.read(tmp_path / "run")
    subject = Subject(run, "test", "cpu")
    loss = subject.loss(None)
    assert loss(loss.weights).item() == pytest.approx(run.scalars["test/loss"][2], rel=1e-5)
    line, _, draw = interpolate({"run": subject, "again": subject}, split="test", points=3)
    assert [axes.get_ylabel() for axes in draw().axes] == ["loss"]  # there is no accuracy
    assert line["highest between"].item() == pytest.approx(run.scalars["test/loss"][2], rel=1e-5)
    other = replace(run, config=Config({**run.config, "loss": "cross_entropy"}))
    with pytest.raises(UserError, match="different losses"):
        interpolate({"run": subject, "other": Subject(other, "test", "cpu")}, split="test")
    rows = clients({"run": subject}, metric="mae").numbers
    recorded = read_csv(tmp_path / "run" / "clients.csv").query("round == 2")["mae"]
    assert rows["mean"].item() == pytest.approx(recorded.mean())
    assert rows["worst 10 %"].item() == pytest.approx(recorded.max())
    with pytest.raises(UserError, match="no classes"):
        classes({"run": subject})
    with pytest.raises(UserError, match=r"did you mean mae\?"):
        clients({"run": subject}, metric="mea")
    for other in ({"best": True}, {"round": 1}, {"split": "train"}):
        with pytest.raises(UserError, match="omit"):
            clients({"run": replace(subject, **other)}, metric="mae")


def test_a_caption_counts_the_samples_of_every_run():
    subjects: Any = {"a": SimpleNamespace(data=range(1437)), "b": SimpleNamespace(data=range(500))}
    assert analyses._samples(subjects, 1000, "train") == "500 or 1,000 training samples"
