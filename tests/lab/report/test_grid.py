"""Scores and tables."""

import subprocess
import sys
from shutil import which

import pytest
from pandas import DataFrame, Series
from run_folders import cells, compared, marked, run

from fl_lightning.lab import report
from fl_lightning.lab.report import Table
from fl_lightning.lab.report.score import score as make_score
from fl_lightning.runs.run import Run


def test_the_numbers_are_those_worked_out_by_hand(tmp_path):
    run(tmp_path / "a", [0.5, 0.5, 0.9], seed=1)
    run(tmp_path / "b", [0.5, 0.7, 0.6], seed=0)
    names = ["final", "best", "last", "rounds_to:70", "mb_to:70", "round_seconds"]
    (row,) = cells(compared(tmp_path), *names)
    assert row["final, %"] == "75.00 ± 21.21"  # 60 and 90; 30 / sqrt 2
    assert row["best, %"] == "80.00 ± 14.14"  # 70 and 90
    assert row["last 10, %"] == "61.67 ± 2.36"  # 60 and 63.33
    assert row["rounds to 70%"] == "2 ± 1"  # 2 and 3: 2.5, rounded to even
    assert row["MB to 70%"] == "7.5 ± 2.1"  # three a round
    assert row["s a round"] == "0.500 ± 0.000"


def test_one_run_has_no_deviation_and_its_last_ten_evaluations_are_ten(tmp_path):
    run(tmp_path / "a", [0.1, 0.2, *[None, 0.8] * 10])
    (row,) = cells(compared(tmp_path), "last", "final")
    assert (row["last 10, %"], row["final, %"]) == ("80.00", "80.00")


@pytest.mark.parametrize(
    ("second", "rounds", "mb"), [([0.5, 0.9], "in 1 of 2", "in 1 of 2"), ([0.5, 0.5], "2+", "6.0+")]
)
def test_a_target_that_not_all_reach_has_no_mean(second, rounds, mb, tmp_path):
    run(tmp_path / "a", [0.5, 0.6], seed=0)
    run(tmp_path / "b", second, seed=1)
    (row,) = cells(compared(tmp_path), "rounds_to:80", "mb_to:80")
    assert (row["rounds to 80%"], row["MB to 80%"]) == (rounds, mb)


def test_a_target_is_reached_by_an_equal_accuracy(tmp_path):
    run(tmp_path / "a", [0.28, 0.57, 0.6])
    (row,) = cells(compared(tmp_path), "rounds_to:57", "rounds_to:57.01")
    assert (row["rounds to 57%"], row["rounds to 57.01%"]) == ("2", "3")


def test_clients_own_models_are_scored_with_their_deviation_over_clients(tmp_path):
    lines = ["client,test_samples,accuracy_0,accuracy_5"]
    lines += [f"{k},10,0.5,{0.1 * k}" for k in range(10)]
    (run(tmp_path / "a", [0.5]) / "personal.csv").write_text("\n".join(lines))
    lines = ["client,test_samples,rmse_0", "0,10,0.5"]
    (run(tmp_path / "b", [0.5], algorithm="fedsam") / "personal.csv").write_text("\n".join(lines))
    scores = ["personal", "personal:0", "worst_clients", "worst_clients:20"]
    row, other = cells(compared(tmp_path), *scores, spread="clients")
    assert row["own models, %"] == "45.00 ± 28.72"
    assert row["own models after 0, %"] == "50.00 ± 0.00"
    assert row["worst 10% of clients, %"] == "0.00"
    assert row["worst 20% of clients, %"] == "5.00 ± 5.00"
    assert other["own models, %"] == ""
    both = compared(tmp_path).table(["personal", "last"]).caption
    assert "of the global or each client's model" in both


def test_the_best_of_a_metric_is_by_the_direction_that_runs_have_recorded(tmp_path):
    for name, number in (("fedavg", 0.3), ("scaffold", 0.2)):
        run(tmp_path / name, [number], algorithm=name, score="test/rmse", larger=False)
    assert marked(compared(tmp_path).table(["test/rmse"]), "best")["test/rmse"] == ["scaffold"]


@pytest.mark.parametrize("tag", ["clients/mine", "clients/mine_worst10"])
@pytest.mark.parametrize("larger", [True, False])
def test_a_metric_of_clients_has_the_direction_of_the_global_models(tag, larger, tmp_path):
    folder = run(tmp_path / "a", [0.3], score="test/mine", larger=larger)
    assert make_score(tag, [Run.read(folder)]).higher_is_better is larger


DIRECTIONS = {
    True: "test_R2 score, val/F1, val_Acc, test_MulticlassAccuracy, test_BinaryF1Score, "
    "val/BinaryAUROC, val_mIoU, val/dice, test/bleu",  # whatever the capitals
    False: "val/dice_loss, val_iou_loss",
    None: "val_diceLoss, clients/accuracy_std, clients/r2_std, val_acc_std, train/accuracy gap",
}


@pytest.mark.parametrize(
    ("tag", "better"), [(tag, of) for of, tags in DIRECTIONS.items() for tag in tags.split(", ")]
)
def test_whether_larger_is_better_is_seen_from_a_name(tag, better):
    """Of a deviation or a gap neither is."""
    assert make_score(tag).higher_is_better is better


def test_fewer_rounds_to_a_target_are_better_and_seconds_neither(tmp_path):
    run(tmp_path / "a", [0.8, 0.8], algorithm="fedavg")
    run(tmp_path / "b", [0.5, 0.8], algorithm="scaffold")
    scores = ["final", "last", "rounds_to:75", "mb_to:75", "round_seconds"]
    best = marked(compared(tmp_path).table(scores), "best")
    assert best["final, %"] == ["fedavg", "scaffold"]
    assert best["last 10, %"] == best["rounds to 75%"] == best["MB to 75%"] == ["fedavg"]
    assert best["s a round"] == []


def test_a_mean_over_fewer_seeds_has_no_mark(tmp_path):
    for seed in (0, 1):
        run(tmp_path / f"a{seed}", [0.5], algorithm="fedavg", seed=seed)
        run(tmp_path / f"b{seed}", [0.6], algorithm="fedsam", seed=seed)
    run(tmp_path / "c", [0.9], algorithm="scaffold", seed=0)
    table = compared(tmp_path).table(["final"])
    assert "90.00 (1)" in {*table.text["final, %"]}
    assert marked(table, "best")["final, %"] == ["fedsam"]


def test_marks_and_special_characters_in_every_format():
    text = DataFrame({"me|od_": ["a|b & c", "*c [1]", "<d>"], "%": ["1 ± 2", "0", ""]})
    marks = DataFrame({"%": ["best", "second", ""]})
    table = Table(text, marks, "a < b")
    assert r"me\textbar{}od\_ & \% \\" in table.latex()
    assert r"a\textbar{}b \& c & \textbf{1 $\pm$ 2} \\" in table.latex()
    assert r"{*}c {[}1] & \underline{0} \\" in table.latex()  # no options of \\
    head, _, *rows, _, caption = table.markdown().splitlines()
    assert (head, caption) == (r"| me\|od_ | % |", "a < b")
    assert rows == [r"| a\|b & c | **1 ± 2** |", "| *c [1] | *0* |", "| <d> |  |"]
    for part in ("&lt;d&gt;", "a &lt; b", "<b>1 ± 2</b>"):
        assert part in table.html()


def test_the_deviation_over_the_last_rounds_of_one_run(tmp_path):
    run(tmp_path / "a", [0.1, 0.5, 0.7], seed=0)
    run(tmp_path / "b", [0.1, 0.6, 0.6], seed=1)
    (row,) = cells(compared(tmp_path), "last:2", "best", spread="rounds")
    best = compared(tmp_path).table(["best"], spread="rounds")
    assert "rounds" not in best.caption, "it has no deviation"
    assert row["last 2, %"] == "60.00 ± 5.00"  # 10 and 0, population deviations
    assert row["best, %"] == "65.00"  # one number of each run has no such deviation


def test_a_mean_over_fewer_evaluations_than_named_is_noted(tmp_path):
    run(tmp_path / "a", [0.1, 0.5], seed=0)
    run(tmp_path / "b", [0.1, 0.6, 0.6], seed=1, rounds=2)
    table = compared(tmp_path).table(["last:3", "last:2", "final", "test/accuracy:3"])
    noted = [note.partition(" of the")[0] for note in table.notes]
    assert noted == ["last 3, %: 1", "last 3, test/accuracy: 1"]
    assert "1 of the 2 runs has fewer" in table.notes[0]


def test_rounds_to_an_accuracy_are_blank_of_runs_without_one(tmp_path):
    run(tmp_path / "a", [0.1, 0.8])
    run(tmp_path / "b", [0.1, 0.8], algorithm="fedsam", score="test/rmse")
    shown = compared(tmp_path).table(["rounds_to:70", "mb_to:70"])
    assert shown.text["rounds to 70%"].tolist() == ["2", ""]
    assert shown.text["MB to 70%"].tolist() == ["6.0", ""]
    assert all(str(tmp_path / "b") in note for note in shown.notes)


def test_speed_ups_are_those_of_runs_that_reached_the_target(tmp_path):
    accuracies = {"fedavg": [0.1, 0.8], "fedsam": [0.1, 0.2, 0.2, 0.9], "scaffold": [0.1] * 4}
    for algorithm, values in accuracies.items():
        run(tmp_path / algorithm, values, algorithm=algorithm, rounds=4)
    for over, expected in (
        ("fedavg", [["2", "1.00x"], ["4", "0.50x"], ["4+", "-"]]),
        ("scaffold", [["2"], ["4"], ["4+"]]),
    ):
        text = compared(tmp_path).table(["rounds_to:80"], over=over).text
        assert text.to_numpy()[:, 1:].tolist() == expected


def test_some_seeds_that_did_not_reach_the_target_have_no_speed_up(tmp_path):
    run(tmp_path / "a", [0.1, 0.8])
    run(tmp_path / "b", [0.8, 0.8], algorithm="scaffold")
    run(tmp_path / "c", [0.1, 0.1], 1, algorithm="scaffold")
    text = compared(tmp_path).table(["rounds_to:80"], over="fedavg").text
    assert text.to_numpy()[:, 1:].tolist() == [["2 (1)", "1.00x"], ["in 1 of 2", "-"]]


def test_the_validation_part_chooses_the_best_round(tmp_path):
    folder = run(tmp_path / "a", [0.5, 0.6, 0.9])
    lines = (folder / "metrics.csv").read_text().splitlines()
    added = zip(lines, ["val/accuracy", "0.1", "0.3", "0.2"], strict=True)
    (folder / "metrics.csv").write_text("\n".join(f"{line},{more}" for line, more in added))
    assert cells(compared(tmp_path), "best")[0]["best, %"] == "60.00"


def test_a_table_in_latex_has_common_headings_papers_names_and_true_minuses(tmp_path):
    runs = [report.Run.read(run(tmp_path / name, [0.7])) for name in ("fedavg", "mine_|")]
    published = {"fedavg": {"IID": 80, "15%": 69}}
    columns = ["IID", "IID"]
    table = report.grid(runs, ["fedavg", "mine_|"], columns, ["best"], published=published)
    lines = table.latex().splitlines()
    assert r" & \multicolumn{3}{c}{IID} & \multicolumn{2}{c}{15\%} \\" in lines
    assert r"\cmidrule(lr){2-4} \cmidrule(lr){5-6}" in lines
    assert r"method & ours & publ. & diff. & ours & publ. \\" in lines
    assert r"FedAvg & \textbf{70.00} & 80.00 & $-$10.00 &  & 69.00 \\" in lines
    assert r"mine\_\textbar{} & \textbf{70.00} &  &  &  &  \\" in lines
    if which("pdflatex"):
        head = r"\documentclass{article}\usepackage{booktabs, adjustbox}\begin{document}"
        (tmp_path / "t.tex").write_text("\n".join([head, *lines, r"\end{document}"]))
        command = ["pdflatex", "-interaction=batchmode", "-halt-on-error", "t.tex"]
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
        assert "Overfull" not in (tmp_path / "t.log").read_text()


def test_headings_in_latex_have_papers_names():
    table = Table(DataFrame([["0", "97.22"]], columns=["class", "scaffold, seed 1"]))
    assert r"class & SCAFFOLD, seed 1 \\" in table.latex().splitlines()


@pytest.mark.parametrize("name", ["fedavg", "fedavg, lr 0.1, " + "a long name " * 9])
def test_a_table_that_is_wider_than_the_terminal_continues_below(name, monkeypatch, capsys):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "60")
    kinds = "ours", "publ.", "diff."
    heads = {f"{k}0% {kind}": (f"{k}0%", kind) for k in range(1, 6) for kind in kinds}
    numbers = [f"{place}.25 ± 0.{place}" for place in range(15)]
    Table(DataFrame([[name, *numbers]], columns=["method", *heads]), heads=heads).show()
    shown = capsys.readouterr().out
    assert {len(line) <= 60 for line in shown.splitlines() if line.startswith("│")} == {True}
    assert all(number in shown for number in numbers)
    assert shown.count("fedavg") > 1


def test_seconds_to_a_target_are_those_of_training(tmp_path):
    run(tmp_path / "a", [0.5, 0.8, 0.9], seconds="time/train_s")
    (row,) = cells(compared(tmp_path), "seconds_to:80", "time/train_s")
    assert (row["s to 80%"], row["time/train_s"]) == ("1.0", "0.5000")


@pytest.mark.parametrize(("largest", "digits"), [(0.034, 3), (0.34, 2), (3.4, 1), (34, 0), (0, 0)])
def test_small_amounts_have_two_digits(largest, digits):
    assert make_score("mb_to:80").with_digits(Series([0.0, largest])).digits == digits


@pytest.mark.parametrize("tag", ["train_loss", "norm"])
def test_a_column_without_a_slash_is_a_score(tag, tmp_path):
    run(tmp_path / "a", [0.5, 0.8], seconds=tag)
    (row,) = cells(compared(tmp_path), tag)
    assert row[tag] == "0.5000"


def test_scores_of_one_scalar_have_columns_of_their_own_and_equal_ones_share_one(tmp_path):
    run(tmp_path / "a", [0.5, 0.7, 0.9])
    names = ["test/accuracy", "test/accuracy:2", "last", "last:10"]
    (row,) = cells(compared(tmp_path), *names)
    found = {"test/accuracy": "0.9000", "last 2, test/accuracy": "0.8000", "last 10, %": "70.00"}
    assert row == {"method": "fedavg", **found}


WRONG = "lats rounds_to rounds_to:x last:-1 best:2 last:nan last:3.7 last:0.5 test/loss:1.5"


@pytest.mark.parametrize("text", [*WRONG.split(), "worst_clients:0", "worst_clients:101"])
def test_a_wrong_score_is_named(text):
    with pytest.raises(ValueError, match=text.partition(":")[0]):
        report.score(text)


def test_a_score_that_some_runs_lack_is_a_blank_with_a_note(tmp_path):
    run(tmp_path / "a", [0.5, 0.7])
    run(tmp_path / "b", [0.5, 0.6], algorithm="fedsam")
    run(tmp_path / "c", [0.5, 0.8], 1, seconds="time/other")
    shown = compared(tmp_path).table(["final", "round_seconds"])
    assert shown.text["s a round"].tolist() == ["", "0.500 (1)"]
    assert shown.text["final, %"].tolist() == ["75.00 ± 7.07", "60.00 (1)"]
    (note,) = shown.notes
    assert note == f"s a round is blank where it was not recorded, or NaN: {tmp_path / 'c'}"


def test_a_model_that_has_diverged_has_no_score_of_earlier_rounds(tmp_path):
    for name, losses in (("fedavg", [0.9, 0.7]), ("fedsam", [0.5, "nan"])):
        table = run(tmp_path / name, [0.5, 0.5], algorithm=name) / "metrics.csv"
        head, *rows = table.read_text().splitlines()
        more = zip(rows, losses, [0.2, "nan"], strict=True)
        rows = [f"{row},{loss},{train}" for row, loss, train in more]
        table.write_text("\n".join([f"{head},test/loss,train/loss", *rows]) + "\n")
    shown = compared(tmp_path).table(["test/loss", "test/loss:2", "train/loss"])
    assert shown.text["test/loss"].tolist() == ["0.7000", ""]
    assert shown.text["last 2, test/loss"].tolist() == ["0.8000", ""]
    assert shown.text["train/loss"].tolist() == ["0.2000"] * 2, "a round without clients is NaN"


def test_rows_and_columns_may_be_named_by_numbers(tmp_path):
    runs = [Run.read(run(tmp_path / str(alpha), [0.5], alpha=alpha)) for alpha in (0.1, 1.0)]
    values = [r.config["partition.alpha"] for r in runs]
    assert [*report.grid(runs, values, scores=["best"]).text["method"]] == ["0.1", "1.0"]
    assert [*report.grid(runs, ["a", "a"], values, ["best"]).text] == ["method", "0.1", "1.0"]
