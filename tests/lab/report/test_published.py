"""Tables beside published numbers, and the page of reproduced ones from saved results."""

import runpy
from pathlib import Path
from types import SimpleNamespace

from pandas import DataFrame, Index, read_csv
from run_folders import run

from fl_lightning.lab import report


def test_published_numbers_are_compared_cell_by_cell(tmp_path):
    ours = {"a": 0.9, "b": 0.8, "c": 0.7}
    runs = [report.Run.read(run(tmp_path / name, [score])) for name, score in ours.items()]
    published = {"b": {"IID": 79, "Dir": 1}, "a": {"IID": 91}, "c": {"IID": 80}, "d": {"IID": 3}}
    table = report.grid(runs, [*ours], ["IID"] * 3, ["best"], published=published)
    assert table.text.to_numpy().tolist() == [
        ["b", "80.00", "79.00", "+1.00", "", "1.00"],
        ["a", "90.00", "91.00", "-1.00", "", ""],
        ["c", "70.00", "80.00", "-10.00", "", ""],
        ["d", "", "3.00", "", "", ""],
        ["mean absolute difference", "", "", "4.00", "", ""],
        ["Kendall's tau", "", "", "0.33", "", ""],  # two pairs of three in the same order
    ]
    assert [*table.text][:4] == ["method", "IID", "IID, published", "IID, difference"]
    assert report.grid([], [], [], published=published).text["IID"].tolist() == [""] * 4


def test_a_target_that_not_all_reach_has_no_difference_from_the_published_number(tmp_path):
    names = "all", "some", "none"
    accuracies = [0.5, 0.8], [0.5, 0.6], [0.5, 0.5]
    runs = [report.Run.read(run(tmp_path / n, a)) for n, a in zip(names, accuracies, strict=True)]
    more = report.Run.read(run(tmp_path / "more", [0.8], 1))
    published = {name: {"IID": 1} for name in names}
    table = report.grid(
        [*runs, more], [*names, "some"], ["IID"] * 4, ["rounds_to:80"], published=published
    )
    assert table.text["IID, difference"].tolist() == ["+1", "", "", "1.00", ""]


def test_a_mean_of_columns_in_one_of_which_a_target_was_not_reached_has_no_value(tmp_path):
    reached = {"A": ([0.8], [0.8], [0.1]), "B": ([0.8], [0.8])}
    placed = [(c, s, a) for c, of in reached.items() for s, a in enumerate(of)]
    runs = [report.Run.read(run(tmp_path / f"{c}{s}", a, s)) for c, s, a in placed]
    columns = [c for c, _, _ in placed]
    means = {"mean": ["A", "B"]}
    table = report.grid(runs, ["x"] * 5, columns, ["rounds_to:80"], means=means)
    assert table.text.to_numpy().tolist() == [["x", "in 2 of 3", "1 ± 0 (2)", "in 1 of 2 (2)"]]


def test_the_mean_difference_of_small_numbers_has_their_digits(tmp_path):
    runs = [report.Run.read(run(tmp_path / name, [0.1])) for name in "ab"]
    published = {"a": {"IID": 0.101}, "b": {"IID": 0.102}}
    table = report.grid(runs, ["a", "b"], ["IID"] * 2, ["test/accuracy"], published=published)
    assert table.text["IID, difference"].tolist() == ["-0.0010", "-0.0020", "0.0015", ""]


SCRIPT = Path(__file__).parents[3] / "benchmarks/reproduced.py"


def test_tables_have_the_last_accuracy_of_each_saved_curve():
    names = runpy.run_path(str(SCRIPT))
    strength = names["STRENGTH"]
    saved = read_csv(SCRIPT.with_suffix("") / "fedsol_strength.csv").groupby("seed").last()
    made = names["scored"](strength, published=strength.published["final"]).numbers
    made = made.query("score.str.startswith('final')").set_index("row")
    assert made["mean"].count() >= 3
    for row, mean in made["mean"].dropna().items():
        assert abs(mean - 100 * saved[row].mean()) < 1e-9
    assert made.published["fedavg, as released"] == 96.11
    assert made.published["fedsol, per column, as released"] == 97.44


def test_new_curves_replace_saved_ones_of_the_same_seed_only(tmp_path):
    names = runpy.run_path(str(SCRIPT))
    saved, delta = names["curves"](names["DELTA"]), names["DELTA"]
    functions = names["curves"].__globals__
    functions["RESULTS"] = tmp_path / "results.csv"
    saved.to_csv(tmp_path / "fedtoga_delta.csv")
    cells = [("gradient", "", "")]
    job = SimpleNamespace(state="finished", folder="run", config={"seed": 7}, cells=cells)
    functions["plan"] = lambda *_: [job]
    metrics = DataFrame({"test/accuracy": [0.25, 0.5]}, index=Index([5, 10], name="round"))
    functions["Run"] = SimpleNamespace(read=lambda _: SimpleNamespace(metrics=metrics))
    again = names["curves"](delta, [tmp_path])
    assert [*again.loc[7, "gradient"].dropna()] == [0.25, 0.5]
    assert again.loc[7].drop(columns="gradient").isna().all(axis=None)
    assert again.loc[[0]].equals(saved.loc[[0]])


def test_the_page_is_made_from_saved_results_alone():
    names = runpy.run_path(str(SCRIPT))
    column = "MNIST 15% DiD1"
    rows = [
        ["fedavg", column, 0, 300, 97.67, 0.09, 97.81, 78, "87ca231712"],
        ["fedssg", column, 0, 300, 98.40, 0.04, 98.47, 29, "87ca231712"],
        ["feddc", column, 0, 300, 96.00, 0.04, 96.10, None, "87ca231712"],
    ]
    page = names["page"](DataFrame(rows, columns=names["COLUMNS"]))
    assert "3 of 48 cells are run; mean absolute difference 0.780 points" in page
    assert f"beyond 0.30: 1 ({column} feddc)" in page
    accuracy, _, rounds, _ = (line for line in page.splitlines() if line.startswith("| fedssg |"))
    assert "| 98.40 ± 0.04 | 98.42 | -0.02 |" in accuracy
    assert "| 29 | 24 | +5 | 2.69x |" in rounds
    never = next(line for line in page.splitlines() if "300+" in line)
    assert "| 300+ | 31 |  | - |" in never
    assert "not run" in accuracy
    assert page.count("fl-lightning run papers --config fedssg/table4") == 48
