"""Tables beside published numbers."""

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
