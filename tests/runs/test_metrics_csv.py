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


def test_a_round_that_is_logged_twice_is_added_to_without_the_rows_before(tmp_path):
    path = tmp_path / "metrics.csv"
    logger = MetricsCSV(path)
    logger.log_metrics({"mine": 0.125, "test/loss": 2.0}, 1)
    with path.open() as file:  # another one as soon as the table is written anew
        for k in (2, 3):
            logger.log_metrics({"mine": k / 3}, k)
            logger.log_metrics({"mine": 0.5, "test/loss": float(k)}, k)
        assert file.read() == path.read_text()
    assert read_scalars(path) == {
        "mine": {1: 0.125, 2: 0.5, 3: 0.5},
        "test/loss": {1: 2.0, 2: 2.0, 3: 3.0},
    }
