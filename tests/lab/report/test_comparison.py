"""Rows and columns of a comparison."""

from itertools import product
from math import nan
from typing import Any

import pytest
from run_folders import cells, compared, run

from fl_lightning.errors import UserError
from fl_lightning.lab.report import compare, load_runs


@pytest.mark.parametrize(
    ("options", "other", "added"),
    [
        ({}, {"executor": "stacked", "parallel_clients": 4, "keep_checkpoints": 1}, []),
        ({"local_epochs": 2, "hidden": [2, 1]}, {"local_epochs": 2.0, "hidden": [2.0, 1]}, []),
        ({}, {"lr": 0.2}, ["lr"]),
        ({}, {"alpha": 0.2}, ["partition.alpha"]),
        ({"precision": "32-true"}, {"precision": "bf16-mixed"}, ["precision"]),
        ({"data_dir": "data"}, {"data_dir": "elsewhere"}, []),
        ({}, {"own": {"rho": 0.1}}, ["algorithm.rho"]),
    ],
)
def test_an_option_in_which_runs_of_a_cell_differ_becomes_part_of_the_row(
    options, other, added, tmp_path
):
    run(tmp_path / "a", [0.5], **options)
    run(tmp_path / "b", [0.5], seed=1, **other)
    comparison = compared(tmp_path)
    assert comparison.rows == ["method", *added]
    assert len({*comparison.row_names}) == len(added) + 1


def test_runs_are_compared_by_the_scores_that_their_module_names(tmp_path):
    run(tmp_path / "a", [0.5, 0.7], score="dice", larger=True)
    (row,) = cells(compared(tmp_path), "last")
    assert row["last 10, dice"] == "0.6000"


def test_a_row_names_the_arguments_in_which_callbacks_differ(tmp_path):
    used = [["sharpness:every=5,rho=0.1", "gradients"], ["sharpness:every=5,rho=0.2"], None]
    for k, callbacks in enumerate(used):
        run(tmp_path / str(k), [0.5], callback=callbacks)
    assert compared(tmp_path).row_names == [
        "fedavg, sharpness:rho=0.1,gradients",
        "fedavg, sharpness:rho=0.2",
        "fedavg, callback none",
    ]


def test_an_edited_user_file_makes_another_row(tmp_path):
    for name, text in (("a", "first"), ("b", "second"), ("c", "second")):
        folder = run(tmp_path / name, [0.5], seed=int(name == "c"), algorithm="mine.py:own")
        (folder / "own").mkdir()
        (folder / "own/mine.py").write_text(text)
    first, second, third = compared(tmp_path).row_names
    assert first != second == third
    assert first.startswith("mine.py:own, code ")


def test_code_that_a_row_shares_is_not_part_of_its_name(tmp_path):
    run(tmp_path / "a", [0.5])
    for alpha in (0.1, 0.2):
        folder = run(tmp_path / f"{alpha}", [0.5], algorithm="mine.py:own", alpha=alpha)
        (folder / "own").mkdir()
        (folder / "own/mine.py").write_text("code")
    assert {*compared(tmp_path, "partition.alpha").row_names} == {"fedavg", "mine.py:own"}
    assert compared(tmp_path, "partition.alpha").notes == []
    (folder / "own/mine.py").write_text("other code")
    assert compared(tmp_path, "partition.alpha").notes == ["the columns differ in code, too"]


def test_seeds_are_no_columns(tmp_path):
    run(tmp_path / "a", [0.5])
    run(tmp_path / "b", [0.5], seed=1)
    with pytest.raises(UserError, match="seed form one cell"):
        compared(tmp_path, "seed")


def test_rows_say_what_differs_between_methods_and_within_them(tmp_path):
    run(tmp_path / "a", [0.5], algorithm="fedsam", own={"rho": 0.1, "kind": "x"})
    run(tmp_path / "b", [0.5], algorithm="fedsam", own={"rho": 0.2, "kind": "x"})
    run(tmp_path / "c", [0.5], algorithm="fedprox", own={"mu": 0.3}, clip_norm=None)
    run(tmp_path / "d", [0.5], perturb={"name": "lesam", "rho": 0.1}, clip_norm=1.0)
    assert compared(tmp_path).row_names == [
        "fedsam, algorithm.rho 0.1",
        "fedsam, algorithm.rho 0.2",
        "fedprox, clip_norm none",
        "fedavg+lesam, clip_norm 1",
    ]


def test_a_decay_is_not_shown_beside_the_curve_that_takes_its_place(tmp_path):
    run(tmp_path / "a", [0.5], lr=0.1, lr_decay=0.9)
    run(tmp_path / "b", [0.5], lr="cosine(0.1, 0)", lr_decay=1.0)
    names = ["fedavg, lr 0.1, lr_decay 0.9", "fedavg, lr cosine(0.1, 0)"]
    assert compared(tmp_path).row_names == names


def test_what_differs_from_column_to_column_alone_is_noted(tmp_path):
    for algorithm, (alpha, decay) in product(("fedavg", "fedsam"), ((0.1, 0.99), (1.0, 1))):
        run(tmp_path / f"{algorithm}{alpha}", [0.5], 0, algorithm, alpha, lr_decay=decay)
    comparison = compared(tmp_path, "partition.alpha")
    assert comparison.rows == ["method"]
    assert comparison.notes == ["the columns differ in lr_decay, too"]


def test_what_is_left_out_or_unfinished_is_noted(tmp_path):
    run(tmp_path / "a", [0.5, nan], rounds=9)
    run(tmp_path / "b", [0.5, nan, 0.8], rounds=9)
    run(tmp_path / "c", [0.4, nan], rounds=9)
    run(tmp_path / "d", [None, None], seed=1, rounds=9)
    comparison = compared(tmp_path)
    assert [r.path.name for r in comparison.runs] == ["b"]
    kept = f"the options and seed of {tmp_path / 'b'}"
    other = "other numbers: label its folder to keep it"
    assert comparison.notes == [
        f"{tmp_path / 'd'} has not been evaluated yet and is left out",
        f"{tmp_path / 'a'} is left out: it has {kept}",
        f"{tmp_path / 'c'} is left out: it has {kept}, but {other}",
        f"{tmp_path / 'b'} is at round 3 of 9",
    ]
    table = comparison.table(["final"])
    for shown in str(table), table._repr_html_():
        assert all(note in shown for note in comparison.notes)


def test_a_run_that_failed_after_its_last_round_is_noted(tmp_path):
    (run(tmp_path / "a", [0.5]) / "environment.yaml").write_text("")
    assert "round 1 of 1, but has failed" in compared(tmp_path).notes[0]


def test_the_best_method_of_each_column_is_marked(tmp_path):
    for alpha, scores in (0.1, (0.5, 0.6)), (1.0, (0.9, 0.8)):
        for algorithm, score in zip(("fedavg", "scaffold"), scores, strict=True):
            run(tmp_path / f"{algorithm}-{alpha}", [score], algorithm=algorithm, alpha=alpha)
    table = compared(tmp_path, "partition.alpha").table(["best"])
    assert table.markdown().splitlines() == [
        "| method | partition.alpha 0.1 | partition.alpha 1 |",
        "| --- | --- | --- |",
        "| fedavg | 50.00 | **90.00** |",
        "| scaffold | **60.00** | 80.00 |",
        "",
        "best, %: test accuracy of the global model, 1 seed",
    ]
    assert str(table) == table.markdown()  # it has no notes


@pytest.mark.parametrize(
    ("option", "values", "texts"),
    [
        ("partition.alpha", [10.0, 9.0, 0.5], ["0.5", "9", "10"]),
        ("algorithm.rho", [1, 0.05, 0.3], ["0.05", "0.3", "1"]),
        ("clip_norm", [10.0, None, 1], ["none", "1", "10"]),
    ],
)
def test_columns_are_in_the_order_of_numbers(option, values, texts, tmp_path):
    for k, value in enumerate(values):
        options: dict[str, Any] = {option.rpartition(".")[2]: value}
        options = {"own": options} if option == "algorithm.rho" else options
        run(tmp_path / str(k), [0.5], algorithm="fedsam", **options)
    text = compared(tmp_path, option).table(["best"]).text
    assert [*text] == ["method", *(f"{option} {text}" for text in texts)]
    assert [*text["method"]] == ["fedsam"]


def test_columns_by_a_component_are_by_its_own_options_too(tmp_path):
    iid: dict[str, Any] = {"partition": {"name": "iid", "sigma": 0.0}}
    for algorithm in ("scaffold", "fedavg"):
        run(tmp_path / algorithm / "a", [0.5], algorithm=algorithm, alpha=0.1)
        run(tmp_path / algorithm / "b", [0.6], algorithm=algorithm, alpha=0.2)
    run(tmp_path / "fedavg" / "c", [0.7], algorithm="fedavg", **iid)
    text = compared(tmp_path, "partition").table(["best"]).text
    skewed = [f"dirichlet, partition.alpha {alpha}" for alpha in (0.1, 0.2)]
    assert [*text] == ["method", *skewed, "iid"]
    expected = [["fedavg", "50.00", "60.00", "70.00"], ["scaffold", "50.00", "60.00", ""]]
    assert text.to_numpy().tolist() == expected


def test_a_column_that_determines_another_option_is_named_by_itself(tmp_path):
    run(tmp_path / "a", [0.5], data={"name": "mnist", "channels": 1}, clients=10)
    run(tmp_path / "b", [0.6], data={"name": "svhn", "channels": 3}, clients=20)
    comparison = compared(tmp_path, "data", "clients")
    assert [*comparison.column_names] == ["mnist", "svhn"]


def test_rows_by_modifier_and_columns_by_algorithm(tmp_path):
    parts = {"none": 0.5, "lesam": 0.6}
    for algorithm, perturb in product(("fedavg", "scaffold"), parts):
        folder = tmp_path / f"{algorithm}{perturb}"
        run(folder, [parts[perturb]], algorithm=algorithm, perturb={"name": perturb})
    text = compare(load_runs([tmp_path]), ["perturb"], ["algorithm"]).table(["best"]).text
    expected = [["lesam", "60.00", "60.00"], ["perturb none", "50.00", "50.00"]]
    assert text.to_numpy().tolist() == expected


def test_labels_name_methods_values_rows_columns_and_folders(tmp_path):
    for folder in ("old", "new"):
        run(tmp_path / folder / "a", [0.5], alpha=0.1)
        run(tmp_path / folder / "b", [0.5], alpha=0.1, algorithm="fedsam", own={"rho": 0.1})
    run(tmp_path / "new" / "c", [0.6], alpha=0.1, algorithm="fedsam", own={"rho": 0.2})
    labels = {str(tmp_path / "old") + "/": "before", "fedsam": "SAM", "fedavg": "Avg"}
    labels |= {"SAM, algorithm.rho 0.2": "ours"}
    comparison = compare(load_runs([tmp_path]), labels=labels)
    before = "before, Avg", "before, SAM, algorithm.rho 0.1"
    assert {*comparison.row_names} == {"Avg", "SAM, algorithm.rho 0.1", *before, "ours"}
    assert comparison.notes == []


def test_gains_are_over_one_row(tmp_path):
    for lr, score in ((0.1, 0.5), (0.2, 0.6)):
        run(tmp_path / str(lr), [score], lr=lr)
    run(tmp_path / "sam", [0.8], algorithm="fedsam")
    comparison = compared(tmp_path)
    gains = [row["best, %, gain"] for row in cells(comparison, "best", over="fedsam, lr 0.1")]
    assert gains == ["-30.00", "-20.00", "+0.00"]
    with pytest.raises(ValueError, match=r"no row is fedavg: .*fedavg, lr 0.2"):
        comparison.table(over="fedavg")
