"""Intervals between checkpoints, in rounds or time."""

from datetime import timedelta

import jobs
import pytest

from fl_lightning.runs.converters import parse_interval


def test_intervals_are_rounds_or_times():
    minute = timedelta(minutes=1)
    intervals = {"10": 10, 10: 10, "30s": minute / 2, "5min": 5 * minute, "1.5 h": 90 * minute}
    assert {text: parse_interval(text) for text in intervals} == intervals


@pytest.mark.parametrize("bad", ["0", "-1", "2.5", "0min", "5m", "min", "5 days", "", "none"])
def test_other_intervals_are_refused(bad, refused):
    assert "5min or 2h" in refused("--checkpoint-every", bad)


def test_a_configuration_may_hold_a_time(tmp_path):
    (tmp_path / "some.yaml").write_text("checkpoint_every: 5min\nrounds: 11\n")
    jobs.run(tmp_path / "run", [0], "--config", str(tmp_path / "some.yaml"))
    checkpoints = {path.name for path in (tmp_path / "run/checkpoints").iterdir()}
    assert checkpoints == {"round-0.ckpt", "round-11.ckpt"}
    assert "checkpoint_every: 5min\n" in (tmp_path / "run" / "config.yaml").read_text()
