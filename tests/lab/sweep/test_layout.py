"""The finished runs of a table are laid out as in papers, the best of tuned values in each cell."""

from dataclasses import replace

import pytest
from tables import DIGITS, METHODS, SMALL, finished, options

from fl_lightning.__main__ import main
from fl_lightning.errors import UserError
from fl_lightning.lab.sweep.layout import choose, layout
from fl_lightning.lab.sweep.plan import plan
from fl_lightning.lab.sweep.table_file import TableFile


@pytest.mark.parametrize(
    ("score", "shown"), [("best", "90.00"), ("rounds_to:60", "2"), ("rounds_to:95", "2+")]
)
def test_a_cell_shows_the_best_of_its_tuned_values(score, shown, planned, tmp_path):
    """A value with which a run never reached the target is best only where none did."""
    tuned = "methods: {fedavg: {}}\ntune: {lr: [0.1, 0.2, 0.3]}\n"
    jobs = planned(SMALL + tuned + f"score: [{score}]\n")
    for job, accuracies in zip(jobs, [(0.1, 0.1), (0.2, 0.9), (0.5, 0.8)], strict=True):
        finished(job, *accuracies)
    [table] = layout(TableFile.read(str(tmp_path / "table.yaml")), jobs)
    assert [*table.text.iloc[:, -1]] == [shown]
    assert f"best of lr by {score}" in table.caption


@pytest.mark.parametrize(
    ("score", "shown"),
    [("score: test/mcc\n", "test/mcc"), ("score: last:1\n", "test/mcc"), ("", "last 10, test/mcc")],
)
def test_the_best_of_a_users_metric_is_what_the_runs_say(score, shown, planned, tmp_path):
    """It is also the score of a table that names none."""
    tuned = "methods: {fedavg: {}}\ntune: {lr: [0.1, 0.3]}\n"
    jobs = planned(SMALL + tuned + score)
    for job, number in zip(jobs, (0.2, 0.9), strict=True):
        finished(job, number, score="test/mcc", larger=True)
    [table] = layout(TableFile.read(str(tmp_path / "table.yaml")), jobs)
    assert table.text[shown].tolist() == ["0.9000"]


def test_values_are_not_tuned_by_a_score_of_unknown_direction(planned, tmp_path):
    jobs = planned(SMALL + "methods: {fedavg: {}}\ntune: {lr: [0.1, 0.3]}\nscore: my/reward\n")
    for job, reward in zip(jobs, (0.2, 0.9), strict=True):
        finished(job, reward, score="my/reward")
    with pytest.raises(UserError, match="my/reward"):
        layout(TableFile.read(str(tmp_path / "table.yaml")), jobs)


def test_only_tuned_values_with_the_same_seeds_compete(planned, tmp_path):
    tuned = "methods: {fedavg: {}}\ntune: {finetune_epochs: [[1], [1, 2]]}\n"  # lists as values
    jobs = planned(SMALL + tuned + "seeds: [0, 1]\nscore: last:2\n")
    for job, accuracy in zip(jobs[:3], (0.5, 0.6, 0.9), strict=True):
        finished(job, accuracy, accuracy)
    [table] = layout(TableFile.read(str(tmp_path / "table.yaml")), jobs)
    assert table.text["last 2, %"].tolist() == ["55.00 ± 7.07"]
    note, chosen = table.notes
    assert note == "fedavg: finetune_epochs 1,2 has seeds [0], not [0, 1], and is not compared"
    assert chosen.startswith("fedavg: finetune_epochs 1, best of 2 settings")


TUNED = """\
rows:
  fedavg: {tune: {lr: [0.1, 0.2, 0.3]}}
  fedsam: {tune: {lr: [0.4, 0.5], algorithm.rho: [0.01, 0.1]}}
tune_seeds: [7]
seeds: [0, 1]
"""


def test_rows_tune_values_of_their_own(planned):
    jobs = planned(SMALL + TUNED)
    averaging = [("fedavg", lr, None) for lr in (0.1, 0.2, 0.3)]
    sharpness = [("fedsam", lr, rho) for lr in (0.4, 0.5) for rho in (0.01, 0.1)]
    assert options(jobs[::2], "algorithm", "lr", "algorithm.rho") == averaging + sharpness


def test_a_dry_run_lists_the_trials_before_any_has_run(planned, tmp_path, capsys):
    planned(SMALL + TUNED + "callback: gradients\nscore: [last, 'gradients_to:50']\n")
    table = ["table", str(tmp_path / "table.yaml"), "--runs", str(tmp_path / "runs")]
    main([*table, "--recipe", str(DIGITS), "--dry-run"])
    assert capsys.readouterr().out.count("fl-lightning run") == 7


def test_the_best_of_the_trials_alone_gets_the_seeds_of_the_table(planned, tmp_path):
    planned(SMALL + TUNED)  # writes the file
    table = TableFile.read(str(tmp_path / "table.yaml"))
    trials = plan(replace(table, seeds=table.tune_seeds), DIGITS, tmp_path / "runs")
    for job, accuracy in zip(trials, (0.1, 0.2, 0.9, 0.1, 0.1, 0.3), strict=False):
        finished(job, accuracy, accuracy)
    chosen, notes = choose(table, trials)
    jobs = plan(chosen, DIGITS, tmp_path / "runs")
    best = ("fedavg", 0.3, None), ("fedsam", 0.5, 0.01)
    expected = [(*of, seed) for of in best for seed in (0, 1)]
    assert options(jobs, "algorithm", "lr", "algorithm.rho", "seed") == expected
    assert ["lr 0.3 is the last value tried" in note for note in notes] == [True, False]
    assert ["3 settings" in notes[0], "4 settings" in notes[1], "3 have" in notes[1]] == [True] * 3
    assert "finished" not in notes[0]  # all have


def test_a_damaged_run_leaves_the_others_in_the_table(planned, tmp_path):
    jobs = planned(SMALL + METHODS + "seeds: [0, 1]\nscore: last:2\n")
    for job in jobs[:3]:
        finished(job, 0.5, 0.6)
    (jobs[0].folder / "metrics.csv").write_text("a,b\n")
    (jobs[1].folder / "metrics.csv").write_text("round,test/accuracy\n")
    [table] = layout(TableFile.read(str(tmp_path / "table.yaml")), jobs)
    assert table.text.to_numpy().tolist() == [["fedavg", ""], ["fedsam", "55.00"]]
    for job, note in zip(jobs[:2], table.notes, strict=True):
        assert note.startswith(f"{job.folder} holds no run that can be read: metrics.csv")


def test_a_finished_run_with_fewer_rounds_than_it_says_is_left_out_with_a_note(planned, tmp_path):
    jobs = planned(SMALL + METHODS)
    finished(jobs[0], 0.5, 0.6)
    metrics = jobs[0].folder / "metrics.csv"
    metrics.write_text("".join(metrics.read_text().splitlines(keepends=True)[:2]))
    [table] = layout(TableFile.read(str(tmp_path / "table.yaml")), jobs)
    assert table.text["method"].tolist() == ["fedavg", "fedsam"]
    assert "ends with round 1 of 2" in table.notes[0]


def test_a_table_without_runs_shows_what_was_published(tmp_path, planned):
    text = SMALL + METHODS + "published: {fedsam: [3.25]}\ntune: {lr: [0.1, 0.3]}\n"
    jobs = planned(text)
    [shown] = layout(TableFile.read(str(tmp_path / "table.yaml")), jobs)
    assert len(jobs) == 4
    assert "3.25" in shown.markdown()
    assert "4 of 4 runs are missing" in shown.caption


def test_a_number_published_of_a_later_score_alone_is_shown_beside_it(tmp_path, planned):
    text = "rows: {fedavg: {}}\ncolumns: {a: {}, b: {lr: 0.3}}\nscore: [best, final]\n"
    for job in planned(SMALL + text + "published: {final: {fedavg: {b: 3.25}}}\n"):
        finished(job, 0.6, 0.5)
    table = TableFile.read(str(tmp_path / "table.yaml"))
    shown = layout(table, plan(table, DIGITS, tmp_path / "runs"))
    rows = [table.text.to_dict("records")[0] for table in shown]
    assert rows[0] == {"method": "fedavg", "a": "60.00", "b": "60.00"}
    assert [rows[1][k] for k in ("a", "b", "b, published")] == ["50.00", "50.00", "3.25"]


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        ({"columns": ["a"], "scores": ("final",)}, [["method", "a"]]),
        ({"columns": ["a"]}, [["method", "a", "a, published", "a, difference"]]),
        ({"sweep": {"lr 0.1": {"lr": 0.1}}}, [["method", "a, lr 0.1", "b, lr 0.1"]] * 2),
    ],
)
def test_columns_without_published_numbers_are_left_out_unless_none_has_any(
    changes, shown, tmp_path, planned
):
    text = "rows: {fedavg: {}}\ncolumns: {a: {}, b: {batch_size: 8}}\nscore: [best, final]\n"
    planned(SMALL + text + "published: {best: {fedavg: {a: 2}}, final: {fedavg: {b: 3.25}}}\n")
    table = TableFile.read(str(tmp_path / "table.yaml")).changed(**changes)
    jobs = plan(table, DIGITS, tmp_path / "runs")
    for job in jobs:
        finished(job, 0.6, 0.5)
    assert [[*each.text] for each in layout(table, jobs)] == shown


def test_a_mean_of_columns_is_left_out_with_one_of_them(tmp_path, planned):
    text = "columns: {a: {}, b: {lr: 0.3}, c: {lr: 0.2}}\nmeans: {few: [a, b], all: '*'}\n"
    for job in planned(SMALL + "methods: {fedavg: {}}\n" + text):
        finished(job, 0.5)
    whole = TableFile.read(str(tmp_path / "table.yaml"))
    heads = {(): ["few", "all"], ("a", "b"): ["few"], ("b",): []}
    for columns, means in heads.items():
        table = whole.changed(columns=columns)
        [shown] = layout(table, plan(table, DIGITS, tmp_path / "runs"))
        assert [*shown.text][1:] == [*(columns or "abc"), *means]


@pytest.mark.parametrize("shortened", ["--rounds 1", "--config short.yaml"])
def test_shortened_runs_are_not_compared_with_published_numbers(
    shortened, tmp_path, planned, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    published = "published: {fedsam: [3.25]}\n"
    jobs = planned(SMALL + METHODS + published, *shortened.split(), short="rounds: 1\n")
    finished(jobs[1], 0.5)
    [shown] = layout(TableFile.read(str(tmp_path / "table.yaml")), jobs)
    assert "1 of 2 rounds: not compared" in shown.caption
    assert "3.25" not in shown.markdown()
    (tmp_path / "table.yaml").write_text(SMALL + METHODS)
    [shown] = layout(TableFile.read("table.yaml"), jobs)
    assert "1 of 2 rounds; 1 of 2 runs are missing" in shown.caption
