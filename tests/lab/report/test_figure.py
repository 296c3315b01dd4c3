"""Figures of runs."""

from math import nan

import pytest
import torch
from matplotlib.figure import Figure
from run_folders import compared, run

import fl_lightning as fl
from fl_lightning.lab.report import against, curves


def drawn(figure: Figure) -> list[list[list[float]]]:
    return [[list(map(float, line.get_ydata())) for line in axes.lines] for axes in figure.axes]


def test_curves_are_means_in_bands_over_the_seeds_that_have_come_so_far(tmp_path):
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
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["FedAvg", "SCAFFOLD"]


def test_runs_of_a_plot_are_no_list(tmp_path):
    run(tmp_path / "a", [0.5, 0.7])
    runs = [fl.runs.run.Run.read(tmp_path / "a")]
    assert drawn(fl.plot.curves(*runs)) == [[[0.5, 0.7]]]
    for wrong in ((), (runs,), (tmp_path / "a",)):
        with pytest.raises(fl.UserError, match=r"curves\(\*runs\)"):
            fl.plot.curves(*wrong)
    for plot, wanted in (fl.plot.clients, "per_client"), (fl.plot.partition, "FederatedData"):
        with pytest.raises(fl.UserError, match=wanted):
            plot(runs[0])


def test_a_panel_for_each_value_of_an_option(tmp_path):
    run(tmp_path / "a", [0.5], alpha=1.0)
    run(tmp_path / "b", [0.6], alpha=0.1)
    run(tmp_path / "c", [0.7], alpha=1.0, algorithm="scaffold")
    figure = curves(compared(tmp_path, "partition.alpha"))
    titles = ["partition.alpha 0.1", "partition.alpha 1"]
    assert [axes.get_title() for axes in figure.axes] == titles
    assert drawn(figure) == [[[0.6]], [[0.5], [0.7]]]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["FedAvg", "SCAFFOLD"]


Y = torch.arange(8) % 3


@pytest.mark.parametrize(
    ("y", "shown"),
    [
        (Y, "client"),
        (Y.int(), "client"),
        (Y > 0, "client"),
        (-Y, "rows of a client"),
        (1_000_000_000 * Y, "rows of a client"),
        ({"first": Y, "second": Y}, "rows of a client"),
    ],
)
def test_a_partition_has_a_heat_map_where_targets_are_classes(y, shown):
    data = fl.FederatedData((torch.zeros(8, 2), y), clients=[0, 1] * 4)
    assert fl.plot.partition(data).axes[0].get_xlabel() == shown


def test_a_pattern_draws_a_line_for_each_scalar_that_matches(tmp_path):
    run(tmp_path / "a", [0.5, 0.7])
    figure = curves(compared(tmp_path), "comm/*_mb")
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["FedAvg comm/downlink_mb", "FedAvg comm/uplink_mb"]
    assert drawn(figure) == [[[2, 2], [1, 1]]]
    with pytest.raises(ValueError, match=r"no run has recorded comm/x\*"):
        curves(compared(tmp_path), "comm/x*")
    undefined = run(tmp_path / "undefined" / "a", [nan, nan]).parent
    with pytest.raises(ValueError, match="no run has recorded test/accuracy"):
        curves(compared(undefined))


def test_a_name_with_brackets_is_no_pattern(tmp_path):
    run(tmp_path / "a", [0.5], score="test/class_[a]")
    assert drawn(curves(compared(tmp_path), "test/class_[a]")) == [[[0.5]]]


def test_smooth_curves_are_means_of_the_last_evaluations(tmp_path):
    run(tmp_path / "a", [0.2, None, 0.4, 0.8])
    assert drawn(curves(compared(tmp_path), smooth=2)) == [[pytest.approx([0.2, 0.3, 0.6])]]


def test_many_panels_are_in_rows(tmp_path):
    for alpha in range(1, 7):
        run(tmp_path / str(alpha), [0.5], alpha=alpha)
    figure = curves(compared(tmp_path, "partition.alpha"))
    rows = {axes.get_subplotspec().rowspan.start for axes in figure.axes}
    assert (len(figure.axes), len(rows)) == (6, 2)


def test_a_score_against_an_option(tmp_path):
    for seed in (0, 1):
        run(tmp_path / f"none-{seed}", [0.4 + 0.2 * seed], seed)
        for rho in (0.01, 0.1, 1.0):
            folder = tmp_path / f"{rho}-{seed}"
            run(folder, [0.5 + rho / 10], seed, algorithm="fedsam", own={"rho": rho})
    figure = against(compared(tmp_path, "algorithm.rho"), "algorithm.rho", "best", log=True)
    (axes,) = figure.axes
    line, curve = axes.lines[-1], axes.containers[0]
    assert list(line.get_ydata()) == pytest.approx([50, 50])
    assert curve.lines[0].get_xydata().tolist() == [
        pytest.approx([rho, 50 + 10 * rho]) for rho in (0.01, 0.1, 1.0)
    ]
    labels = axes.get_xscale(), axes.get_xlabel(), axes.get_ylabel()
    assert labels == ("log", "algorithm.rho", "test accuracy, best, %")
    assert [text.get_text() for text in axes.get_xticklabels()] == ["0.01", "0.1", "1"]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["FedSAM", "FedAvg"]


def test_a_score_against_an_option_is_left_out_where_a_run_did_not_reach_its_target(tmp_path):
    for rho, accuracies in ((0.1, [0.5, 0.8]), (0.2, [0.8, 0.8]), (0.3, [0.5, 0.6])):
        for seed in (0, 1):
            reached = [0.9, 0.9] if seed else accuracies
            run(tmp_path / f"{rho}-{seed}", reached, seed, algorithm="fedsam", own={"rho": rho})
    run(tmp_path / "none", [0.1, 0.1], 0)
    figure = against(compared(tmp_path, "algorithm.rho"), "algorithm.rho", "rounds_to:80")
    (points,) = [container.lines[0] for container in figure.axes[0].containers]
    assert points.get_ydata().tolist() == pytest.approx([1.5, 1.0, nan], nan_ok=True)
    assert drawn(figure)[0][-1] == pytest.approx([nan, nan], nan_ok=True)


def test_a_score_against_names(tmp_path):
    for place, name in enumerate(("b", "a")):
        for data in ("mnist", "svhn"):
            folder = tmp_path / f"{name}{data}"
            run(folder, [0.5 + place / 10], partition={"name": name}, data=data)
    figure = against(compared(tmp_path, "data", "partition"), "partition", "best")
    assert [axes.get_title() for axes in figure.axes] == ["mnist", "svhn"]
    assert [text.get_text() for text in figure.axes[0].get_xticklabels()] == ["a", "b"]
    assert drawn(figure)[0][0] == pytest.approx([60, 50])


def test_a_score_against_what_is_no_column_is_refused(tmp_path):
    run(tmp_path / "a", [0.5])
    with pytest.raises(ValueError, match=r"algorithm\.rho is none of the columns"):
        against(compared(tmp_path), "algorithm.rho")
