"""Processes of the runs of tables."""

from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from fl_lightning.lab.sweep import pool


def test_every_table_locks_logs_in_one_order_and_each_once(tmp_path, monkeypatch):
    locked = list[str]()
    monkeypatch.setattr(pool.fcntl, "flock", lambda file, _: locked.append(Path(file.name).name))
    stack: Any = [SimpleNamespace(log=tmp_path / name) for name in ("2", "1", "2")]
    with ExitStack() as opened:
        logs = pool._logs(stack, opened)
        assert locked == ["1", "2"]
        assert [Path(log.name).name for log in logs] == ["2", "1", "2"]
