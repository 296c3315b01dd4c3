"""Experiments, their rows and columns."""

from itertools import product
from pathlib import Path
from typing import Any

import pytest
from run_folders import cells, compared, marked, run

from fl_lightning.report import Comparison, load_runs


def seeds(folder: Path) -> list[str]:
    """The seeds of each experiment."""
    return [row["seeds"] for row in cells(compared(folder))]


@pytest.mark.parametrize(
    ("options", "other", "expected"),
    [
        ({}, {"executor": "stacked", "parallel_clients": 4, "keep_checkpoints": 1}, ["0,1"]),
        ({"local_epochs": 2, "hidden": [2, 1]}, {"local_epochs": 2.0, "hidden": [2.0, 1]}, ["0,1"]),
        ({}, {"lr": 0.2}, ["0", "1"]),
        ({}, {"alpha": 0.2}, ["0", "1"]),
        ({"precision": "32-true"}, {"precision": "bf16-mixed"}, ["0", "1"]),
        ({"data_dir": "data"}, {"data_dir": "elsewhere"}, ["0,1"]),
        ({}, {"own": {"rho": 0.1}}, ["0", "1"]),
    ],
)
def test_runs_are_one_experiment_if_they_differ_in_seed_and_rounding_alone(
    options, other, expected, tmp_path
):
    run(tmp_path / "a", [0.5], **options)
    run(tmp_path / "b", [0.5], seed=1, **other)
    assert seeds(tmp_path) == expected


def test_an_edited_user_file_makes_another_experiment(tmp_path):
    for name, text in (("a", "first"), ("b", "second"), ("c", "second")):
        folder = run(tmp_path / name, [0.5], seed=int(name == "c"), algorithm="mine.py:own")
        (folder / "own").mkdir()
        (folder / "own/mine.py").write_text(text)
    assert seeds(tmp_path) == ["0", "0,1"]
    assert all(row.startswith("mine.py:own, code ") for row in compared(tmp_path).rows)


def test_modifiers_belong_to_the_method(tmp_path):
    mean, adam = {"name": "mean"}, {"name": "adam", "lr": 0.1}
    for rho, server in (0.0, mean), (0.1, mean), (0.2, adam), (0.3, mean):
        perturb = {"name": "lesam", "rho": rho} if rho else {"name": "none"}
        run(tmp_path / str(rho), [0.5], perturb=perturb, server_optimizer=server)
    text = compared(tmp_path).table(["last"]).text
    methods = ["fedavg", "fedavg+lesam, rho 0.1", "fedavg+lesam+adam", "fedavg+lesam, rho 0.3"]
    assert [*text["method"]] == methods
    assert text.columns[1] == "seeds"


def test_an_experiment_is_labeled_by_what_differs(tmp_path):
    run(tmp_path / "a", [0.5], algorithm="fedsam", own={"rho": 0.1, "kind": "x"})
    run(tmp_path / "b", [0.5], algorithm="fedsam", own={"rho": 0.2, "kind": "x"})
    run(tmp_path / "c", [0.5], algorithm="fedprox", own={"mu": 0.3}, lr=0.01, momentum=[0, 1])
    run(tmp_path / "d", [0.5], algorithm="fedprox", own={"mu": 0.3}, momentum=None, rounds=2)
    comparison = compared(tmp_path)
    assert comparison.rows == [
        "fedsam, rho 0.1, rounds 1",
        "fedsam, rho 0.2, rounds 1",
        "fedprox, lr 0.01, momentum 0,1, rounds 1",
        "fedprox, lr 0.1, momentum none, rounds 2",
    ]
    rows = [(row["method"], row["lr"], row["momentum"]) for row in cells(comparison)]
    assert rows[1:3] == [("fedsam, rho 0.2", "0.1", ""), ("fedprox", "0.01", "0,1")]


def test_what_is_left_out_or_unfinished_is_noted(tmp_path):
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


def test_the_best_method_of_each_setting_is_marked(tmp_path):
    for alpha, scores in (0.1, (0.5, 0.6)), (1.0, (0.9, 0.8)):
        for algorithm, score in zip(("fedavg", "scaffold"), scores, strict=True):
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
def test_methods_are_ranked_each_with_its_own_tuned_options(across, tmp_path):
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
def test_columns_are_in_the_order_of_numbers(option, values, texts, tmp_path):
    for k, value in enumerate(values):
        options: dict[str, Any] = {option.rpartition(".")[2]: value}
        options = {"own": options} if option == "algorithm.rho" else options
        run(tmp_path / str(k), [0.5], algorithm="fedsam", **options)
    text = compared(tmp_path, option).table(["best"]).text
    assert [*text] == ["method", *texts]
    assert [*text["method"]] == ["fedsam"]


def test_across_a_choice_its_own_options_go_with_it(tmp_path):
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


def test_the_columns_of_fedtogas_first_table(tmp_path):
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
            partition={"name": "label_prior", "alpha": alpha, "classes": classes},
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


def test_labels_name_methods_rows_columns_and_folders(tmp_path):
    for folder in ("old", "new"):
        run(tmp_path / folder / "a", [0.5], alpha=0.1)
        run(tmp_path / folder / "b", [0.5], alpha=0.1, algorithm="fedsam", own={"rho": 0.1})
    run(tmp_path / "new" / "c", [0.6], alpha=0.1, algorithm="fedsam", own={"rho": 0.2})
    labels = {str(tmp_path / "old") + "/": "before", "fedsam": "SAM", "fedavg": "Avg"}
    comparison = Comparison.of(load_runs([tmp_path]), labels=labels | {"SAM, rho 0.2": "ours"})
    before = ["before, algorithm fedavg", "before, algorithm fedsam"]
    assert sorted(comparison.rows) == ["Avg", "SAM, rho 0.1", *before, "ours"]
    assert comparison.notes == []
    run(tmp_path / "iid", [0.5], alpha=9.0)
    comparison = Comparison.of(load_runs([tmp_path]), ["partition.alpha"], {"alpha 9": "IID"})
    assert [*comparison.columns.categories] == ["alpha 0.1", "IID"]


def test_a_choice_that_determines_another_option_is_not_repeated(tmp_path):
    run(tmp_path / "a", [0.5], data={"name": "mnist", "channels": 1}, clients=10)
    run(tmp_path / "b", [0.6], data={"name": "svhn", "channels": 3}, clients=20)
    comparison = compared(tmp_path, "data")
    assert [*comparison.columns] == ["mnist", "svhn"]
    assert comparison.rows == ["fedavg", "fedavg"]


def test_an_option_that_older_runs_lack_makes_no_difference(tmp_path):
    run(tmp_path / "a", [0.5], validation_from="clients")
    run(tmp_path / "b", [0.5], seed=1)
    run(tmp_path / "c", [0.5, 0.5], seed=1, validation_from="clients", rounds=1)
    comparison = compared(tmp_path)
    assert comparison.varying == []
    assert [r.path.name for r in comparison.runs] == ["a", "c"]
