"""The table of a run's scalars after a crash."""

from fl_lightning.runs.metrics_csv import MetricsCSV
from fl_lightning.runs.scalars import read_scalars


def test_rows_that_a_crash_has_lost_take_no_later_ones_with_them(tmp_path):
    path = tmp_path / "metrics.csv"
    first = MetricsCSV(path)
    for k in (1, 2, 3):
        first.log_metrics({"test/accuracy": k / 10}, k)
    path.write_text("".join(path.read_text().splitlines(True)[:-1]))
    second = MetricsCSV(path, after=3)
    for k in (4, 5):
        second.log_metrics({"test/accuracy": k / 10}, k)
    MetricsCSV(path, after=4)
    assert [*read_scalars(path)["test/accuracy"]] == [1, 2, 4]
