"""Runs loaded and compared: experiments, scores, tables, curves and messages."""

import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import yaml
from matplotlib.figure import Figure
from pandas import DataFrame

from fl_lightning import report
from fl_lightning.__main__ import main
from fl_lightning.report import Comparison, Run, Table, curves, load_runs


def run(
    folder: Path,
    accuracies: Sequence[float | None],
    seed: int = 0,
    algorithm: str = "fedavg",
    alpha: float = 0.1,
    own: dict[str, Any] | None = None,
    **options: Any,
) -> Path:
    """A run's folder as runs leave it; a round that was not evaluated has no accuracy."""
    folder.mkdir(parents=True)
    config = {
        "algorithm": {"name": algorithm, **(own or {})},
        "partition": {"name": "dirichlet", "alpha": alpha},
    }
    config |= {"rounds": len(accuracies), "seed": seed, "executor": "auto", "lr": 0.1} | options
    (folder / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    lines = ["round,test/accuracy,comm/uplink_mb,comm/downlink_mb,time/round_s"]
    lines += [f"{k},{'' if a is None else a},1.0,2.0,0.5" for k, a in enumerate(accuracies, 1)]
    (folder / "metrics.csv").write_text("\n".join(lines) + "\n")
    return folder


def compared(folder: Path, *across: str, **labels: str) -> Comparison:
    return Comparison.of(load_runs([folder]), across, labels)


def cells(comparison: Comparison, *scores: str, **options: Any) -> list[dict[str, str]]:
    return comparison.table(scores or ["last"], **options).text.to_dict("records")


def seeds(folder: Path) -> list[str]:
    """The seeds of each experiment."""
    return [row["seeds"] for row in cells(compared(folder))]


def marked(table: Table, mark: str) -> dict[str, list[str]]:
    """The rows with this mark in each column."""
    return {heading: [*table.marks.index[table.marks[heading] == mark]] for heading in table.marks}


def test_a_data_frame_has_a_row_per_run_and_round(tmp_path: Path) -> None:
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


def test_the_example_of_load_draws_means_over_seeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
def test_a_run_that_cannot_be_read_is_named_and_left_out(
    file: str, content: str, tmp_path: Path
) -> None:
    run(tmp_path / "whole", [0.5])
    (run(tmp_path / "torn", [0.5]) / file).write_text(content)
    with pytest.warns(UserWarning, match="torn holds no run that can be read"):
        runs = report.load(tmp_path)
    assert runs["run"].tolist() == [str(tmp_path / "whole")]


def test_a_line_that_is_being_written_does_not_count(tmp_path: Path) -> None:
    table = run(tmp_path / "a", [0.5, 0.6]) / "metrics.csv"
    table.write_text(table.read_text() + "3,0.9")
    assert Run.read(tmp_path / "a").scalars["test/accuracy"] == {1: 0.5, 2: 0.6}


def test_the_numbers_are_those_worked_out_by_hand(tmp_path: Path) -> None:
    run(tmp_path / "a", [0.5, 0.5, 0.9], seed=1)
    run(tmp_path / "b", [0.5, 0.7, 0.6], seed=0)
    names = ["final", "best", "last", "rounds_to:70", "mb_to:70", "round_seconds"]
    (row,) = cells(compared(tmp_path), *names)
    assert row["final, %"] == "75.00 ± 21.21"  # 60 and 90; 30 / sqrt 2
    assert row["best, %"] == "80.00 ± 14.14"  # 70 and 90
    assert row["last 10, %"] == "61.67 ± 2.36"  # 60 and 63.33
    assert row["rounds to 70%"] == "2 ± 1"  # 2 and 3: 2.5, rounded to even
    assert row["MB to 70%"] == "8 ± 2"  # three a round
    assert row["s a round"] == "0.500 ± 0.000"
    assert (row["seeds"], row["rounds"]) == ("0,1", "3")


def test_one_run_has_no_deviation_and_its_last_ten_evaluations_are_ten(tmp_path: Path) -> None:
    run(tmp_path / "a", [0.1, 0.2] + [accuracy for _ in range(10) for accuracy in (None, 0.8)])
    (row,) = cells(compared(tmp_path), "last", "final")
    assert (row["last 10, %"], row["final, %"]) == ("80.00", "80.00")


@pytest.mark.parametrize(
    ("second", "rounds", "mb"),
    [([0.5, 0.9], "in 1 of 2", "in 1 of 2"), ([0.5, 0.5], "2+", "6+")],
)
def test_a_target_that_not_all_reach_has_no_mean(
    second: list[float], rounds: str, mb: str, tmp_path: Path
) -> None:
    run(tmp_path / "a", [0.5, 0.6], seed=0)
    run(tmp_path / "b", second, seed=1)
    (row,) = cells(compared(tmp_path), "rounds_to:80", "mb_to:80")
    assert (row["rounds to 80%"], row["MB to 80%"]) == (rounds, mb)


def test_clients_own_models_are_scored_with_their_deviation_over_clients(tmp_path: Path) -> None:
    lines = ["client,test_samples,accuracy_0,accuracy_5"]
    lines += [f"{k},10,0.5,{0.1 * k}" for k in range(10)]
    (run(tmp_path / "a", [0.5]) / "personal.csv").write_text("\n".join(lines))
    run(tmp_path / "b", [0.5], algorithm="fedsam")
    scores = ["personal", "personal:0", "worst_clients", "worst_clients:20"]
    row, other = cells(compared(tmp_path), *scores, spread="clients")
    assert row["own models, %"] == "45.00 ± 28.72"
    assert row["own models after 0, %"] == "50.00 ± 0.00"
    assert row["worst 10% of clients, %"] == "0.00"
    assert row["worst 20% of clients, %"] == "5.00 ± 5.00"
    assert other["own models, %"] == ""


@pytest.mark.parametrize(
    ("options", "other", "expected"),
    [
        ({}, {"executor": "stacked", "parallel_clients": 4, "keep_checkpoints": 1}, ["0,1"]),
        ({"local_epochs": 2, "hidden": [2, 1]}, {"local_epochs": 2.0, "hidden": [2.0, 1]}, ["0,1"]),
        ({}, {"lr": 0.2}, ["0", "1"]),
        ({}, {"alpha": 0.2}, ["0", "1"]),
        ({}, {"precision": "bf16-mixed"}, ["0", "1"]),
        ({}, {"data_dir": "elsewhere"}, ["0", "1"]),
        ({}, {"own": {"rho": 0.1}}, ["0", "1"]),
    ],
)
def test_runs_are_one_experiment_if_they_differ_in_seed_and_rounding_alone(
    options: dict[str, Any], other: dict[str, Any], expected: list[str], tmp_path: Path
) -> None:
    run(tmp_path / "a", [0.5], **options)
    run(tmp_path / "b", [0.5], seed=1, **other)
    assert seeds(tmp_path) == expected


def test_an_edited_user_file_makes_another_experiment(tmp_path: Path) -> None:
    for name, text in (("a", "first"), ("b", "second"), ("c", "second")):
        folder = run(tmp_path / name, [0.5], seed=int(name == "c"), algorithm="mine.py:own")
        (folder / "own").mkdir()
        (folder / "own/mine.py").write_text(text)
    assert seeds(tmp_path) == ["0", "0,1"]
    assert all(row.startswith("mine.py:own, file ") for row in compared(tmp_path).rows)


def test_modifiers_belong_to_the_method(tmp_path: Path) -> None:
    def modified(name: str, rho: float, server: dict[str, Any]) -> None:
        perturb = {"name": "lesam", "rho": rho} if rho else {"name": "none"}
        run(tmp_path / name, [0.5], perturb=perturb, server_optimizer=server)

    modified("a", 0.0, {"name": "mean"})
    modified("b", 0.1, {"name": "mean"})
    modified("c", 0.2, {"name": "adam", "lr": 0.1})
    modified("d", 0.3, {"name": "mean"})
    text = compared(tmp_path).table(["last"]).text
    methods = ["fedavg", "fedavg+lesam, rho 0.1", "fedavg+lesam+adam", "fedavg+lesam, rho 0.3"]
    assert [*text["method"]] == methods
    assert text.columns[1] == "seeds"


def test_an_experiment_is_labelled_by_what_differs(tmp_path: Path) -> None:
    run(tmp_path / "a", [0.5], algorithm="fedsam", own={"rho": 0.1, "kind": "x"}, lr=0.1)
    run(tmp_path / "b", [0.5], algorithm="fedsam", own={"rho": 0.2, "kind": "x"}, lr=0.1)
    run(tmp_path / "c", [0.5], algorithm="fedprox", own={"mu": 0.3}, lr=0.01, momentum=[0, 1])
    run(tmp_path / "d", [0.5], algorithm="fedprox", own={"mu": 0.3}, lr=0.1, rounds=2)
    comparison = compared(tmp_path)
    assert comparison.rows == [
        "fedsam, rho 0.1, rounds 1",
        "fedsam, rho 0.2, rounds 1",
        "fedprox, lr 0.01, momentum 0,1, rounds 1",
        "fedprox, lr 0.1, rounds 2",
    ]
    rows = [(row["method"], row["lr"], row["momentum"]) for row in cells(comparison)]
    assert rows[1:3] == [("fedsam, rho 0.2", "0.1", ""), ("fedprox", "0.01", "0,1")]


def test_what_is_left_out_or_unfinished_is_noted(tmp_path: Path) -> None:
    run(tmp_path / "a", [0.5, 0.5], rounds=9)
    run(tmp_path / "b", [0.5, 0.5, 0.8], rounds=9)
    run(tmp_path / "c", [0.5, 0.6], rounds=9)
    run(tmp_path / "d", [None, None], seed=1, rounds=9)
    comparison = compared(tmp_path)
    assert [r.path.name for r in comparison.runs] == ["b"]
    repeated, other, not_evaluated, unfinished = comparison.notes
    kept = f"the options and seed of {tmp_path / 'b'}"
    assert repeated == f"{tmp_path / 'a'} is left out: it has {kept}"
    assert other == f"{tmp_path / 'c'} is left out: it has {kept}, but other numbers"
    assert not_evaluated == f"{tmp_path / 'd'} has not been evaluated yet and is left out"
    assert unfinished == f"{tmp_path / 'b'} is at round 3 of 9"


def test_the_best_method_of_each_setting_is_marked(tmp_path: Path) -> None:
    for alpha, algorithm, score in (
        (0.1, "fedavg", 0.5),
        (0.1, "scaffold", 0.6),
        (1.0, "fedavg", 0.9),
        (1.0, "scaffold", 0.8),
    ):
        run(tmp_path / f"{algorithm}-{alpha}", [score], algorithm=algorithm, alpha=alpha)
    best = marked(compared(tmp_path).table(["best"]), "best")["best, %"]
    assert best == ["fedavg, partition.alpha 1", "scaffold, partition.alpha 0.1"]
    table = compared(tmp_path, "partition.alpha").table(["best"])
    assert table.markdown().splitlines() == [
        "| method | alpha 0.1 | alpha 1 |",
        "| --- | --- | --- |",
        "| fedavg | 50.00 | **90.00** |",
        "| scaffold | **60.00** | 80.00 |",
        "",
        "best, %: test accuracy of the global model",
    ]


@pytest.mark.parametrize("across", [[], ["partition.alpha"]])
def test_methods_are_ranked_each_with_its_own_tuned_options(
    across: list[str], tmp_path: Path
) -> None:
    tuned: dict[str, dict[str, Any]] = {
        "fedavg": {"lr_decay": 0.998},
        "feddyn": {"lr_decay": 0.9995, "weight_decay": 0.0},
        "fedsam": {"lr": 0.05, "own": {"rho": 0.1}},
    }
    for place, (algorithm, options) in enumerate(tuned.items()):
        for alpha in (0.1, 1.0)[: len(across) + 1]:
            folder = tmp_path / f"{algorithm}{alpha}"
            run(folder, [0.5 + place / 10], algorithm=algorithm, alpha=alpha, **options)
    table = compared(tmp_path, *across).table(["best"])
    assert [*table.text["method"]] == [*tuned]
    for heading in table.text.columns[-2:] if across else ["best, %"]:
        assert marked(table, "best")[heading] == ["fedsam"]
        assert marked(table, "second")[heading] == ["feddyn"]


@pytest.mark.parametrize(
    ("option", "values", "texts"),
    [
        ("partition.alpha", [10.0, 9.0, 0.5], ["alpha 0.5", "alpha 9", "alpha 10"]),
        ("algorithm.rho", [1, 0.05, 0.3], ["rho 0.05", "rho 0.3", "rho 1"]),
        ("clip_norm", [10.0, None, 1], ["clip_norm none", "clip_norm 1", "clip_norm 10"]),
    ],
)
def test_columns_are_in_the_order_of_numbers(
    option: str, values: list[Any], texts: list[str], tmp_path: Path
) -> None:
    for k, value in enumerate(values):
        options: dict[str, Any] = {option.rpartition(".")[2]: value}
        options = {"own": options} if option == "algorithm.rho" else options
        run(tmp_path / str(k), [0.5], algorithm="fedsam", **options)
    text = compared(tmp_path, option).table(["best"]).text
    assert [*text] == ["method", *texts]
    assert [*text["method"]] == ["fedsam"]


def test_across_a_choice_its_own_options_go_with_it(tmp_path: Path) -> None:
    iid: dict[str, Any] = {"partition": {"name": "iid", "sigma": 0.0}}
    for algorithm in ("scaffold", "fedavg"):
        run(tmp_path / algorithm / "a", [0.5], algorithm=algorithm, alpha=0.1)
        run(tmp_path / algorithm / "b", [0.6], algorithm=algorithm, alpha=0.2)
    run(tmp_path / "fedavg" / "c", [0.7], algorithm="fedavg", **iid)
    text = compared(tmp_path, "partition").table(["best"]).text
    assert [*text] == ["method", "dirichlet, alpha 0.1", "dirichlet, alpha 0.2", "iid"]
    assert text.to_numpy().tolist() == [
        ["fedavg", "50.00", "60.00", "70.00"],
        ["scaffold", "50.00", "60.00", ""],
    ]


def test_the_columns_of_fedtogas_first_table(tmp_path: Path) -> None:
    """Data, clients, partition, rates and a coefficient differ from column to column."""
    settings = ("cifar10", 100, 0.997), ("cifar10", 200, 0.9995), ("cifar100", 100, 0.997)
    splits = (0.6, None), (0.1, None), (None, 6), (None, 3)
    methods = {"fedavg": 0.5, "fedsam": 0.6}
    for (data, clients, decay), (alpha, classes), algorithm in product(settings, splits, methods):
        run(
            tmp_path / f"{data}-{clients}-{alpha}-{classes}-{algorithm}",
            [methods[algorithm]],
            algorithm=algorithm,
            own={"rho": 1 / clients} if algorithm == "fedsam" else {},
            partition={"name": "class_priors", "alpha": alpha, "classes": classes},
            **{"data": data, "clients": clients, "participation": 10 / clients, "lr_decay": decay},
        )
    comparison = compared(tmp_path, "data", "clients", "partition")
    table = comparison.table(["best"], means=comparison.means(["partition"]))
    names = [f"{data}, clients {clients}" for data, clients, _ in settings]
    parts = ["classes 3", "classes 6", "alpha 0.1", "alpha 0.6"]
    headings = [f"{name}, {part}" for name in names for part in parts]
    assert [*table.text] == ["method", *headings, *(f"mean, {name}" for name in names)]
    assert table.text.to_numpy().tolist() == [
        ["fedavg", *["50.00"] * 15],
        ["fedsam", *["60.00"] * 15],
    ]
    assert all(best == ["fedsam"] for best in [*marked(table, "best").values()][1:])


def drawn(figure: Figure) -> list[list[list[float]]]:
    return [[list(map(float, line.get_ydata())) for line in axes.lines] for axes in figure.axes]


def test_curves_are_means_in_bands_over_the_seeds_that_have_come_so_far(tmp_path: Path) -> None:
    run(tmp_path / "a", [0.5, 0.7, 0.6], seed=0)
    run(tmp_path / "b", [0.7, 0.9], seed=1, rounds=3)
    run(tmp_path / "c", [0.1, None, 0.3], algorithm="scaffold")
    figure = curves(compared(tmp_path))
    assert drawn(figure) == [[pytest.approx([0.6, 0.8, 0.6]), [0.1, 0.3]]]
    (band,) = figure.axes[0].collections
    heights = band.get_paths()[0].vertices[:, 1]
    spread = 0.02**0.5
    assert min(heights) == pytest.approx(0.6 - spread)
    assert max(heights) == pytest.approx(0.8 + spread)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["fedavg", "scaffold"]


def test_a_panel_for_each_value_of_an_option(tmp_path: Path) -> None:
    run(tmp_path / "a", [0.5], alpha=1.0)
    run(tmp_path / "b", [0.6], alpha=0.1)
    run(tmp_path / "c", [0.7], alpha=1.0, algorithm="scaffold")
    figure = curves(compared(tmp_path, "partition.alpha"))
    assert [axes.get_title() for axes in figure.axes] == ["alpha 0.1", "alpha 1"]
    assert drawn(figure) == [[[0.6]], [[0.5], [0.7]]]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["fedavg", "scaffold"]


def test_the_command_prints_and_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for seed, accuracy in enumerate((0.5, 0.6)):
        run(tmp_path / f"runs/{seed}", [accuracy], seed, "a_{$}~^\\", rounds=2)
    run(tmp_path / "runs/3", [0.1], algorithm="b", rounds=1, alpha=0.1)
    figure = tmp_path / "curves.png"
    main(["compare", str(tmp_path / "runs"), "--format", "latex", "--figure", str(figure)])
    printed = capsys.readouterr()
    assert "% test accuracy of the global model, mean ± standard deviation" in printed.out
    assert "final, \\%" in printed.out
    escaped = r"a\_\{\$\}\textasciitilde \textasciicircum \textbackslash  & 0,1 & 1 & 55.00 $\pm$"
    assert escaped in printed.out
    notes = [line for line in printed.err.splitlines() if line.startswith("note: ")]
    assert notes == [f"note: {tmp_path / 'runs' / seed} is at round 1 of 2" for seed in "01"]
    assert figure.read_bytes().startswith(b"\x89PNG")


def test_marks_bars_and_line_breaks_in_every_format() -> None:
    text = DataFrame({"me\nth|od": ["a|b\n\n| c", "c", "<d>"], "%": ["1 ± 2", "0", ""]})
    marks = DataFrame({"me\nth|od": [""] * 3, "%": ["best", "second", ""]})
    table = Table(text, marks, "a < b")
    assert r"a|b | c & \textbf{1 $\pm$ 2} \\" in table.latex()
    assert r"c & \underline{0} \\" in table.latex()
    head, _, *rows, _, caption = table.markdown().splitlines()
    assert (head, caption) == (r"| me th\|od | % |", "a < b")
    assert rows == [r"| a\|b \| c | **1 ± 2** |", "| c | *0* |", "| <d> |  |"]
    assert "&lt;d&gt;" in table.html()
    assert "a &lt; b" in table.html()


def test_the_command_shows_a_table_in_a_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run(tmp_path / "a", [0.5], algorithm="mine.py:[own]")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "120")
    main(["compare", str(tmp_path)])
    shown = capsys.readouterr().out
    assert "mine.py:[own]" in shown
    assert "test accuracy of the global model" in shown


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["nowhere"], ["no run in nowhere"]),
        (["runs", "--across", "lr"], ["lr", "nothing but the algorithm"]),
        (["runs", "--curve", "train/loss"], ["--curve", "--figure FILE"]),
        (["runs", "--log", "--figure", "f.png"], ["--log", "--x OPTION"]),
        (["runs", "--x", "lr", "--figure", "f.png"], ["lr", "nothing but the algorithm"]),
        (["runs", "--x", "lr", "--smooth", "3", "--figure", "f.png"], ["--x", "--smooth"]),
        (["runs", "--score", "lats"], ["lats", "last, best"]),
        (["runs", "--score", "rounds_to"], ["rounds_to", "rounds_to:80"]),
        (["runs", "--score", "test/accuracies"], ["no run has recorded test/accuracies"]),
        (["runs", "--over", "fedprox"], ["no row is fedprox", "fedavg"]),
        (["runs", "--label", "fedavg"], ["'fedavg'", "label"]),
        (["runs", "--last", "0"], ["'0'", "50"]),
        (["runs", "--target", "0.8"], ["1 to 100", "'0.8'"]),
        (["runs", "--curve", "acc", "--figure", "f.png"], ["recorded acc", "test/accuracy"]),
        (["runs", "--figure", "nowhere/f.png"], ["nowhere/f.png"]),
        (["runs", "--figure", "f.doc"], ["'doc' is not supported"]),
        (["empty"], ["none of these runs has been evaluated"]),
        (["torn"], ["torn/a holds no run that can be read"]),
        ([], ["required: runs"]),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(
    arguments: list[str],
    names: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    run(Path("runs/a"), [0.5])
    run(Path("empty/a"), [None])
    (run(Path("torn/a"), [0.5]) / "config.yaml").write_text("algorithm: [")
    with pytest.raises(SystemExit) as stop:
        main(["compare", *arguments])
    printed = capsys.readouterr()
    assert (stop.value.code, printed.out) == (2, "")
    assert printed.err.startswith("error: ")
    assert printed.err.count("\n") == 1
    for name in names:
        assert name in printed.err
