"""Intervals between checkpoints, in rounds or time."""

from datetime import timedelta

import pytest

from fl_lightning.runs.converters import parse_interval


def test_intervals_are_rounds_or_times():
    minute = timedelta(minutes=1)
    intervals = {"10": 10, 10: 10, "30s": minute / 2, "5min": 5 * minute, "1.5 h": 90 * minute}
    assert {text: parse_interval(text) for text in intervals} == intervals


@pytest.mark.parametrize("bad", ["0", "-1", "2.5", "0min", "5m", "min", "5 days", "", "none"])
def test_other_intervals_are_refused(bad, refused):
    assert "5min or 2h" in refused("--checkpoint-every", bad)
