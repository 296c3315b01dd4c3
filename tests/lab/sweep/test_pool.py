"""Processes of the runs of tables."""

from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tables import METHODS, SMALL, finished

from fl_lightning.errors import UserError
from fl_lightning.lab.sweep import pool


def test_every_table_locks_logs_in_one_order_and_each_once(tmp_path, monkeypatch):
    locked = list[str]()
    monkeypatch.setattr(pool.fcntl, "flock", lambda file, _: locked.append(Path(file.name).name))
    stack: Any = [SimpleNamespace(log=tmp_path / name) for name in ("2", "1", "2")]
    with ExitStack() as opened:
        logs = pool._logs(stack, opened)
        assert locked == ["1", "2"]
        assert [Path(log.name).name for log in logs] == ["2", "1", "2"]


def test_a_run_does_not_begin_in_a_folder_that_another_table_has_taken_since(planned):
    (job, _), (other, _) = planned(SMALL + METHODS), planned(SMALL + METHODS, "--clients", "5")
    finished(other, 0.5, 0.6)
    with pytest.raises(UserError, match="give the command again"):
        job.run()


def test_a_run_does_not_begin_once_a_file_of_its_table_was_edited(planned, tmp_path):
    (job, _) = planned(SMALL + METHODS)
    (tmp_path / "table.yaml").write_text(SMALL + METHODS + "batch_size: 7\n")
    with pytest.raises(UserError, match="batch_size was 16 and is now 7"):
        job.run()
    assert job.state == "missing"
