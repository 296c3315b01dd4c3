"""The table of a run's scalars when the run is resumed."""

from pathlib import Path

import pytest

from fl_lightning.errors import UserError
from fl_lightning.runs.metrics_csv import MetricsCSV
from fl_lightning.runs.scalars import read_scalars

DAMAGES = {
    "the last row is missing": (3, lambda text: "".join(text.splitlines(True)[:-1])),
    "half of the last row is missing": (3, lambda text: text[:-8]),
    "the number of a round is another": (2, lambda text: text.replace("\n2,", "\n6,")),
    "a score is no number": (2, lambda text: text.replace("0.2", "0/2")),
    "the header is missing": (1, lambda text: text.partition("\n")[2]),
    "the file is empty": (1, lambda text: ""),
}


def written(path: Path) -> str:
    logger = MetricsCSV(path)
    for k in (1, 2, 3):
        logger.log_metrics({"test/accuracy": k / 10, "test/loss": 1.0}, k)
    return path.read_text()


def test_rows_after_those_that_are_saved_are_dropped(tmp_path):
    path = tmp_path / "metrics.csv"
    path.write_text(written(path)[:-4])
    MetricsCSV(path, after=2).log_metrics({"test/accuracy": 0.5}, 3)
    assert read_scalars(path)["test/accuracy"] == {1: 0.1, 2: 0.2, 3: 0.5}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_saved_row_that_is_lost_or_damaged_is_named_and_the_file_kept(damage, tmp_path):
    path, (lost, change) = tmp_path / "metrics.csv", DAMAGES[damage]
    path.write_text(left := change(written(path)))
    with pytest.raises(UserError, match=f"round {lost} of 3"):
        MetricsCSV(path, after=3)
    assert path.read_text() == left


def test_a_table_that_is_gone_is_named(tmp_path):
    with pytest.raises(UserError, match="round 1 of 3"):
        MetricsCSV(tmp_path / "metrics.csv", after=3)
