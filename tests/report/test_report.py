"""Runs compared: which of them are one experiment, what is told of them, and what does not fit."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from matplotlib.figure import Figure

from fl_lightning.__main__ import main
from fl_lightning.report import BEST, Comparison, Run, across_table, curves, found, scores_table


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


def compared(folder: Path) -> Comparison:
    return Comparison.of(found([folder]))


def cells(comparison: Comparison, targets: Sequence[float] = ()) -> list[dict[str, str]]:
    table = scores_table(comparison, targets)
    return [dict(zip(table.headings, row, strict=True)) for row in table.rows]


def test_the_numbers_are_those_worked_out_by_hand(tmp_path: Path) -> None:
    run(tmp_path / "a", [0.5, 0.7, 0.6], seed=0)
    run(tmp_path / "b", [0.5, 0.5, 0.9], seed=1)
    (row,) = cells(compared(tmp_path), targets=[70])
    assert row["last, %"] == "75.00 ± 21.21"  # 60 and 90; 30 / sqrt 2
    assert row["best, %"] == "80.00 ± 14.14"  # 70 and 90
    assert row["last 10, %"] == "61.67 ± 2.36"  # 60 and 63.33
    assert row["rounds to 70%"] == "2 ± 1"  # 2 and 3: 2.5, rounded to even
    assert row["MB to 70%"] == "8 ± 2"  # three a round
    assert row["s a round"] == "0.500 ± 0.000"
    assert (row["seeds"], row["rounds"]) == ("0,1", "3")


def test_one_run_has_no_deviation_and_its_last_ten_evaluations_are_ten(tmp_path: Path) -> None:
    accuracies = [0.1, 0.2] + [accuracy for _ in range(10) for accuracy in (None, 0.8)]
    (row,) = cells(Comparison.of([Run.read(run(tmp_path / "a", accuracies))]))
    assert (row["last 10, %"], row["last, %"]) == ("80.00", "80.00")


@pytest.mark.parametrize(("second", "said"), [([0.5, 0.9], "in 1 of 2"), ([0.5, 0.5], "never")])
def test_a_target_that_not_all_reach_is_no_mean(
    second: list[float], said: str, tmp_path: Path
) -> None:
    run(tmp_path / "a", [0.5, 0.6], seed=0)
    run(tmp_path / "b", second, seed=1)
    (row,) = cells(compared(tmp_path), targets=[80])
    assert row["rounds to 80%"] == row["MB to 80%"] == said


def test_runs_that_differ_in_their_seed_and_in_what_has_no_effect_are_one_experiment(
    tmp_path: Path,
) -> None:
    run(
        tmp_path / "b", [0.5], seed=1, executor="stacked", width=4, compile=True, keep_checkpoints=1
    )
    run(tmp_path / "a", [0.5], seed=0)
    (entry,) = compared(tmp_path).entries
    assert entry.seeds == [0, 1]


@pytest.mark.parametrize(
    "other", [{"lr": 0.2}, {"alpha": 0.2}, {"precision": "bf16-mixed"}, {"data_dir": "elsewhere"}]
)
def test_runs_that_differ_in_anything_else_are_two(other: dict[str, Any], tmp_path: Path) -> None:
    run(tmp_path / "a", [0.5])
    run(tmp_path / "b", [0.5], seed=1, **other)
    assert len(compared(tmp_path).entries) == 2


def test_a_configuration_that_was_read_back_is_the_same(tmp_path: Path) -> None:
    """Which writes 2.0 for the 2 of a recipe."""
    run(tmp_path / "a", [0.5], local_epochs=2, hidden=[200, 100])
    run(tmp_path / "b", [0.5], seed=1, local_epochs=2.0, hidden=[200.0, 100])
    assert len(compared(tmp_path).entries) == 1


def test_an_edited_file_of_the_users_makes_another_experiment(tmp_path: Path) -> None:
    for name, text in (("a", "first"), ("b", "second"), ("c", "second")):
        own = (
            run(tmp_path / name, [0.5], seed=int(name == "c"), algorithm="mine.py:own")
            / "own/mine.py"
        )
        own.parent.mkdir()
        own.write_text(text)
    assert [entry.seeds for entry in compared(tmp_path).entries] == [[0], [0, 1]]
    assert all(label.startswith("mine.py:own, file ") for label in compared(tmp_path).listed())


def test_the_same_seed_with_other_numbers_is_told(tmp_path: Path) -> None:
    run(tmp_path / "a", [0.5])
    run(tmp_path / "b", [0.6])
    (note,) = compared(tmp_path).notes
    assert "with the same options and seed, but other numbers, and is left out" in note


def test_what_is_added_belongs_to_the_method(tmp_path: Path) -> None:
    run(tmp_path / "a", [0.5], perturb={"name": "none"}, server={"name": "mean"})
    run(tmp_path / "b", [0.6], perturb={"name": "lesam", "rho": 0.1}, server={"name": "mean"})
    run(
        tmp_path / "c",
        [0.7],
        perturb={"name": "lesam", "rho": 0.2},
        server={"name": "adam", "lr": 0.1},
    )
    run(tmp_path / "d", [0.8], perturb={"name": "lesam", "rho": 0.3}, server={"name": "mean"})
    table = scores_table(compared(tmp_path))
    methods = ["fedavg", "fedavg+lesam, rho 0.1", "fedavg+lesam+adam", "fedavg+lesam, rho 0.3"]
    assert [row[0] for row in table.rows] == methods
    assert table.headings[1] == "seeds"


def test_an_experiment_is_told_by_what_it_differs_in(tmp_path: Path) -> None:
    run(tmp_path / "a", [0.5], algorithm="fedsam", own={"rho": 0.1, "kind": "x"}, lr=0.1)
    run(tmp_path / "b", [0.5], algorithm="fedsam", own={"rho": 0.2, "kind": "x"}, lr=0.1)
    run(tmp_path / "c", [0.5], algorithm="fedprox", own={"mu": 0.3}, lr=0.01, momentum=[0, 1])
    comparison = compared(tmp_path)
    labels = [
        "fedsam, rho 0.1, lr 0.1",
        "fedsam, rho 0.2, lr 0.1",
        "fedprox, lr 0.01, momentum 0,1",
    ]
    assert list(comparison.listed()) == labels
    assert [row["lr"] for row in cells(comparison)] == ["0.1", "0.1", "0.01"]
    assert [row["momentum"] for row in cells(comparison)] == ["", "", "0,1"]


def test_the_same_run_twice_counts_once_and_an_unfinished_one_is_told(tmp_path: Path) -> None:
    run(tmp_path / "a", [0.5, 0.5], rounds=9)
    run(tmp_path / "b", [0.5, 0.5, 0.8], rounds=9)
    run(tmp_path / "c", [None, None], seed=1, rounds=9)
    comparison = compared(tmp_path)
    assert [r.path.name for entry in comparison.entries for r in entry.runs] == ["b"]
    assert comparison.notes == (
        f"{tmp_path / 'a'} is {tmp_path / 'b'} once more and is left out.",
        f"{tmp_path / 'c'} has not been evaluated yet and is left out.",
        f"{tmp_path / 'b'} has come to round 3 of 9.",
    )


def test_a_line_that_is_being_written_does_not_count(tmp_path: Path) -> None:
    table = run(tmp_path / "a", [0.5, 0.6]) / "metrics.csv"
    table.write_text(table.read_text() + "3,0.9")
    assert Run.read(tmp_path / "a").scalars["test/accuracy"] == {1: 0.5, 2: 0.6}


def test_the_best_method_of_each_set_up_is_bold(tmp_path: Path) -> None:
    for alpha, scores in (
        (0.1, {"fedavg": 0.5, "scaffold": 0.6}),
        (1.0, {"fedavg": 0.9, "scaffold": 0.8}),
    ):
        for algorithm, score in scores.items():
            run(tmp_path / f"{algorithm}-{alpha}", [score], algorithm=algorithm, alpha=alpha)
    table = scores_table(compared(tmp_path))
    bold = {
        (table.rows[r][0], table.rows[r][1])
        for r, c in table.best
        if table.headings[c] == "best, %"
    }
    assert bold == {("scaffold", "0.1"), ("fedavg", "1.0")}
    across = across_table(compared(tmp_path), "partition.alpha", BEST)
    assert across.markdown().splitlines() == [
        "| method | partition.alpha 0.1 | partition.alpha 1.0 |",
        "|---|---|---|",
        "| fedavg | 50.00 | **90.00** |",
        "| scaffold | **60.00** | 80.00 |",
    ]


@pytest.mark.parametrize(
    ("option", "values"),
    [
        ("partition.alpha", [10.0, 9.0, 0.5]),
        ("algorithm.rho", [1, 0.05, 0.3]),
        ("clip", [10.0, None, 1]),
    ],
)
def test_columns_are_in_the_order_of_numbers(
    option: str, values: list[Any], tmp_path: Path
) -> None:
    for k, value in enumerate(values):
        where = {"own": {"rho": value}} if "rho" in option else {option.rpartition(".")[2]: value}
        run(tmp_path / str(k), [0.5], algorithm="fedsam", **where)  # type: ignore[arg-type]
    table = across_table(compared(tmp_path), option, BEST)
    order = sorted(values, key=lambda value: -1 if value is None else value)
    assert list(table.headings[1:]) == [f"{option} {'none' if v is None else v}" for v in order]
    assert [row[0] for row in table.rows] == ["fedsam"]


def test_across_a_part_its_own_options_go_with_it(tmp_path: Path) -> None:
    iid = {"partition": {"name": "iid", "sigma": 0.0}}
    for algorithm in ("fedavg", "scaffold"):
        run(tmp_path / algorithm / "a", [0.5], algorithm=algorithm, alpha=0.1)
        run(tmp_path / algorithm / "b", [0.6], algorithm=algorithm, alpha=0.2)
        run(tmp_path / algorithm / "c", [0.7], algorithm=algorithm, **iid)  # type: ignore[arg-type]
    table = across_table(compared(tmp_path), "partition", BEST)
    assert [heading.replace("partition.", "") for heading in table.headings[1:]] == [
        "partition dirichlet, alpha 0.1",
        "partition dirichlet, alpha 0.2",
        "partition iid",
    ]
    assert [list(row) for row in table.rows] == [
        [name, "50.00", "60.00", "70.00"] for name in ("fedavg", "scaffold")
    ]


def test_fewer_rounds_to_a_target_are_better_and_seconds_neither(tmp_path: Path) -> None:
    run(tmp_path / "a", [0.8, 0.8], algorithm="fedavg")
    run(tmp_path / "b", [0.5, 0.8], algorithm="scaffold")
    table = scores_table(compared(tmp_path), targets=[75])
    bold = {table.headings[c]: table.rows[r][0] for r, c in table.best}
    assert {h: bold.get(h) for h in table.headings[5:]} == {
        "last 10, %": "fedavg",
        "rounds to 75%": "fedavg",
        "MB to 75%": "fedavg",
        "s a round": None,
    }


def test_clients_own_models_have_columns(tmp_path: Path) -> None:
    table = run(tmp_path / "a", [0.5, 0.6]) / "metrics.csv"
    first, one, two = table.read_text().splitlines()
    table.write_text(f"{first},personal/accuracy_5\n{one},\n{two},0.75\n")
    (row,) = cells(compared(tmp_path))
    assert row["own models after 5, %"] == "75.00"


def drawn(figure: Figure) -> list[list[list[float]]]:
    return [[list(map(float, line.get_ydata())) for line in axes.lines] for axes in figure.axes]


def test_curves_are_means_in_bands_over_the_seeds_that_have_come_so_far(tmp_path: Path) -> None:
    run(tmp_path / "a", [0.5, 0.7, 0.6], seed=0)
    run(tmp_path / "b", [0.7, 0.9], seed=1, rounds=3)
    run(tmp_path / "c", [0.1, 0.2, 0.3], algorithm="scaffold")
    figure = curves(compared(tmp_path))
    assert drawn(figure) == [[pytest.approx([0.6, 0.8, 0.6]), [0.1, 0.2, 0.3]]]
    (band,) = figure.axes[0].collections
    heights = band.get_paths()[0].vertices[:, 1]
    assert (min(heights), max(heights)) == (
        pytest.approx(0.6 - 0.02**0.5),
        pytest.approx(0.8 + 0.02**0.5),
    )
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["fedavg", "scaffold"]


def test_a_panel_for_each_value_of_an_option(tmp_path: Path) -> None:
    run(tmp_path / "a", [0.5], alpha=0.1)
    run(tmp_path / "b", [0.6], alpha=1.0)
    run(tmp_path / "c", [0.7], alpha=1.0, algorithm="scaffold")
    figure = curves(compared(tmp_path), across="partition.alpha")
    assert drawn(figure) == [[[0.5]], [[0.6], [0.7]]]
    assert [axes.get_title() for axes in figure.axes] == [
        "partition.alpha 0.1",
        "partition.alpha 1.0",
    ]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["fedavg", "scaffold"]


def test_the_command_prints_and_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(tmp_path / "runs/a", [0.5], seed=0, algorithm="fedlesam_s{$}", rounds=2)
    run(tmp_path / "runs/b", [0.6], seed=1, algorithm="fedlesam_s{$}", rounds=2)
    main(
        [
            "compare",
            str(tmp_path / "runs"),
            "--format",
            "latex",
            "--figure",
            str(tmp_path / "curves.png"),
        ]
    )
    told = capsys.readouterr()
    assert r"fedlesam\_s\{\$\} & 0,1 & 1 & 55.00 $\pm$ 7.07" in told.out
    assert "last, \\%" in told.out
    assert told.out.startswith(
        "% test accuracy of the global model, mean ± standard deviation over seeds\n"
    )
    assert f"note: {tmp_path / 'runs/a'} has come to round 1 of 2." in told.err
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


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
    ("arguments", "said"),
    [
        (["nowhere"], "there is no run in nowhere: name the folder of a run"),
        (
            ["runs", "--across", "lr"],
            "these runs do not differ in lr, but in nothing but the algorithm",
        ),
        (["runs", "--curve", "train/loss"], "--curve says what --figure FILE draws: give that too"),
        (["runs", "--score", "last"], "--score says what the table --across OPTION holds"),
        (["runs", "--target", "80", "--across", "lr"], "--target does not go with --across"),
        (["runs", "--target", "0.8"], "give a percentage from 1 to 100, such as 80, not '0.8'"),
        (
            ["runs", "--curve", "test/acuracy", "--figure", "f.png"],
            "no run has recorded test/acuracy: there are",
        ),
        (["runs", "--figure", "nowhere/f.png"], "nowhere/f.png"),
        (["runs", "--figure", "f.doc"], "'doc' is not supported"),
        (["empty"], "none of these runs has been evaluated yet"),
        (["torn"], "holds no run that can be read"),
        ([], "required: runs"),
    ],
)
def test_what_does_not_fit_is_told_in_one_sentence(
    arguments: list[str],
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    run(Path("runs/a"), [0.5])
    run(Path("empty/a"), [None])
    (run(Path("torn/a"), [0.5]) / "config.yaml").write_text("algorithm: [")
    with pytest.raises(SystemExit) as left:
        main(["compare", *arguments])
    told = capsys.readouterr()
    assert (left.value.code, told.out) == (2, "")
    assert told.err.startswith("error: ")
    assert said in told.err
    assert told.err.count("\n") == 1
