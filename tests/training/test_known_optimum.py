"""Regression whose least squares are known: SCAFFOLD reaches them, FedAvg stays away."""

import pytest
from least_squares import lines


def test_scaffold_reaches_the_least_squares_of_equal_clients() -> None:
    distance = lines().distances("scaffold")
    assert distance["clients"] < 1e-9
    assert distance["rows"] > 0.1


def test_scaffold_by_size_reaches_the_least_squares_of_all_rows() -> None:
    distance = lines().distances({"name": "scaffold", "size_weighting": True}, weighting="by_size")
    assert distance["rows"] < 1e-9
    assert distance["clients"] > 0.1


@pytest.mark.parametrize("weighting", ["by_size", "uniform"])
def test_fedavg_stays_away_from_both(weighting: str) -> None:
    assert min(lines().distances("fedavg", weighting=weighting, rounds=12).values()) > 0.1
