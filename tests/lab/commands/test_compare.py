"""The command `fl-lightning compare`."""

import sys
from io import StringIO
from pathlib import Path

import pytest
from pandas import read_csv
from run_folders import run

from fl_lightning.__main__ import main


def test_the_command_prints_and_draws(tmp_path, capsys):
    for seed, accuracy in enumerate((0.5, 0.6)):
        run(tmp_path / f"runs/{seed}", [accuracy], seed, "a_{$}~^\\", rounds=2)
        run(tmp_path / f"runs/b{seed}", [0.1], seed, "b", rounds=1)
    figure = tmp_path / "curves.png"
    main(["compare", str(tmp_path / "runs"), "--format", "latex", "--figure", str(figure)])
    printed = capsys.readouterr()
    assert r"\caption{test accuracy of the global model, mean $\pm$ standard" in printed.out
    assert r"last 10, \%" in printed.out
    escaped = r"a\_\{\$\}\textasciitilde{}\textasciicircum{}\textbackslash{}"
    assert rf"{escaped}, rounds 2 & \textbf{{55.00 $\pm$" in printed.out
    *notes, last = [line for line in printed.err.splitlines() if line.startswith("note: ")]
    assert notes == [f"note: {tmp_path / 'runs' / seed} is at round 1 of 2" for seed in "01"]
    assert "last 10, %: 4 of the 4 runs have fewer" in last
    assert figure.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("algorithm", ["mine.py:[own]", f"mine.py:[own] {'long ' * 40}"])
def test_the_command_shows_a_table_in_a_terminal(algorithm, tmp_path, capsys, monkeypatch):
    run(tmp_path / "a", [0.5], algorithm=algorithm)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "120")
    main(["compare", str(tmp_path)])
    shown = capsys.readouterr().out
    assert "mine.py:[own]" in shown
    assert "50.00" in shown
    assert "test accuracy of the global model" in shown


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["nowhere"], ["no run in nowhere"]),
        (["runs", "--columns", "lr"], ["in lr", "in nothing"]),
        (["runs", "--rows", "partition.alpha"], ["in partition.alpha"]),
        (["runs", "--curve", "train/loss"], ["--curve", "--figure FILE"]),
        (["runs", "--log", "--figure", "f.png"], ["--log", "--x OPTION"]),
        (["runs", "--x", "lr", "--figure", "f.png"], ["in lr", "in nothing"]),
        (["runs", "--x", "lr", "--smooth", "3", "--figure", "f.png"], ["--x", "--smooth"]),
        (["runs", "--score", "lats"], ["lats", "last, best"]),
        (["runs", "--score", "rounds_to"], ["rounds_to", "rounds_to:80"]),
        (["runs", "--score", "test/accuracies"], ["no run has recorded test/accuracies"]),
        (["runs", "--over", "fedprox"], ["no row is fedprox", "fedavg"]),
        (["runs", "--label", "fedavg"], ["'fedavg'", "label"]),
        (["runs", "--published", "spread.csv"], ["'95.1 ± 0.2'", "spread.csv"]),
        (["runs", "--published", "two.csv"], ["two.csv", "--columns"]),
        (["runs", "--score", "last:0.5"], ["'last:0.5'"]),
        (["runs", "--target", "0.8"], ["1 to 100, not 0.8"]),
        (["runs", "--curve", "acc", "--figure", "f.png"], ["recorded acc", "test/accuracy"]),
        (["runs", "--figure", "nowhere/f.png"], ["nowhere/f.png"]),
        (["runs", "--figure", "f.doc"], ["f.doc is no .png"]),
        (["empty"], ["none of these runs has been evaluated"]),
        (["torn"], ["torn/a holds no run that can be read"]),
        ([], ["required: runs"]),
    ],
)
def test_what_does_not_fit_is_one_sentence(arguments, names, tmp_path, monkeypatch, sentence):
    monkeypatch.chdir(tmp_path)
    run(Path("runs/a"), [0.5])
    run(Path("empty/a"), [None])
    (run(Path("torn/a"), [0.5]) / "config.yaml").write_text("algorithm: [")
    Path("spread.csv").write_text("method,accuracy\nfedavg,95.1 ± 0.2\n")
    Path("two.csv").write_text("method,IID,Dir\nfedavg,95.1,\n")
    said = sentence(main, ["compare", *arguments])
    assert all(name in said for name in names), said


def test_published_numbers_stand_beside_the_first_score_without_columns(tmp_path, capsys):
    run(tmp_path / "runs/a", [0.5])
    (tmp_path / "paper.csv").write_text("method,accuracy\nfedavg,52\n")
    published = "--published", str(tmp_path / "paper.csv"), "--score", "final,best"
    main(["compare", str(tmp_path / "runs"), *published, "--format", "csv"])
    shown = read_csv(StringIO(capsys.readouterr().out), index_col="score")
    assert [*shown.loc["final, %", ["published", "difference"]]] == [52, -2]
    assert shown.loc["best, %"].isna()["published"]


def test_published_columns_stand_beside_the_values_of_x(tmp_path, capsys):
    for rho in (0.1, 0.2):
        run(tmp_path / f"runs/{rho}", [0.5 + rho], algorithm="fedsam", own={"rho": rho})
    (tmp_path / "paper.csv").write_text(
        "method,algorithm.rho 0.1,algorithm.rho 0.2\nfedsam,61,69\n"
    )
    published = "--published", str(tmp_path / "paper.csv"), "--x", "algorithm.rho"
    main(["compare", str(tmp_path / "runs"), *published, "--format", "csv"])
    shown = read_csv(StringIO(capsys.readouterr().out), index_col="column")
    assert [*shown["published"]] == [61, 69]
    assert [*shown["difference"].round(9)] == [-1, 1]


def test_scores_may_be_repeated_and_listed(tmp_path, capsys):
    run(tmp_path / "a", [0.5, 0.7])
    scores = "--score", "best", "--score", "final,last:2", "--target", "60"
    main(["compare", str(tmp_path), *scores, "--format", "csv"])
    shown = read_csv(StringIO(capsys.readouterr().out))
    assert [*shown["score"]] == ["best, %", "final, %", "last 2, %", "rounds to 60%", "MB to 60%"]


def test_options_may_be_spelled_as_on_the_command_line(tmp_path, capsys):
    for size in (10, 20):
        run(tmp_path / str(size), [size / 100], batch_size=size)
    main(["compare", str(tmp_path), "--columns", "batch-size", "--format", "csv"])
    shown = read_csv(StringIO(capsys.readouterr().out), index_col="column")
    assert [*shown["mean"].round(9)] == [10, 20]


def test_a_label_for_what_is_not_there_is_noted(tmp_path, capsys):
    run(tmp_path / "a", [0.5])
    run(tmp_path / "b", [0.5], algorithm="fedprox")
    labels = "--label", "fedprox=FedProx", "--label", f"{tmp_path / 'a'}=A", "--label", "fedsam=SAM"
    main(["compare", str(tmp_path), *labels])
    notes = [line for line in capsys.readouterr().err.splitlines() if "--label" in line]
    assert len(notes) == 1
    assert "fedsam" in notes[0]


def test_published_numbers_labels_and_figures_on_the_command_line(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for rho in (0.1, 0.2):
        for alpha in (0.1, 1.0):
            folder = Path(f"runs/{rho}-{alpha}")
            run(folder, [0.5, 0.5 + rho], algorithm="fedsam", own={"rho": rho}, alpha=alpha)
    Path("paper.csv").write_text(
        'method,Dir 0.1,Dir 1\nSAM,60,71\n"fedsam, algorithm.rho 0.2",70,70\n'
    )
    labels = ["--label", "fedsam, algorithm.rho 0.1=SAM"]
    labels += ["--label", "partition.alpha 0.1=Dir 0.1", "--label", "partition.alpha 1=Dir 1"]
    arguments = ["runs", "--columns", "partition.alpha", "--score", "final", "--format", "markdown"]
    main(["compare", *arguments, *labels, "--published", "paper.csv"])
    assert capsys.readouterr().out.splitlines()[2:6] == [
        "| SAM | 60.00 | 60.00 | +0.00 | 60.00 | 71.00 | -11.00 |",
        "| fedsam, algorithm.rho 0.2 | **70.00** | 70.00 | +0.00 | **70.00** | 70.00 | +0.00 |",
        "| mean absolute difference |  |  | 0.00 |  |  | 5.50 |",
        "| Kendall's tau |  |  | 1.00 |  |  | -1.00 |",
    ]
    figures = ["--figure", "rho.png", "--figure", "rho.pdf", "--x", "algorithm.rho", "--log"]
    main(["compare", *arguments[:-1], "csv", *figures])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("row,column,score,mean,deviation")
    assert '"partition.alpha 0.1, algorithm.rho 0.1"' in lines[1]
    assert Path("rho.pdf").read_bytes().startswith(b"%PDF")
    assert Path("rho.png").read_bytes().startswith(b"\x89PNG")
