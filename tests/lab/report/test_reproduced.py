"""The page of reproduced numbers, made from saved results."""

import runpy
from pathlib import Path
from types import SimpleNamespace

from pandas import DataFrame, Index, read_csv

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
    job = SimpleNamespace(
        state="finished", folder="run", config={"seed": 7}, cells=[("gradient", "", "")]
    )
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
    assert "| **98.40 ± 0.04** | 98.42 | -0.02 |" in accuracy
    assert "| **29** | 24 | +5 | 2.69x |" in rounds
    never = next(line for line in page.splitlines() if "300+" in line)
    assert "| 300+ | 31 |  | - |" in never
    assert "not run" in accuracy
    assert page.count("fl-lightning run papers --config fedssg/table4") == 48
