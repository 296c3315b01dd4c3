"""A program whose trainer launches several ranks, each of which runs it from the top."""

from pathlib import Path
from typing import Any

import fit_program
import jobs
import torch


def alone(folder: Path) -> dict[str, Any]:
    """What one rank finds."""
    folder.mkdir()
    process = jobs.start(folder, {}, fit_program.save, 1, folder)
    assert jobs.end([process], 120) == [0], jobs.said(folder)
    return read(folder, 0)


def launched(ranks: int, folder: Path) -> list[dict[str, Any]]:
    """What every rank finds."""
    folder.mkdir()
    argv = fit_program.__file__, str(ranks), str(folder)
    process = jobs.start(folder, {}, jobs.program, *argv)
    assert jobs.end([process], 300) == [0], jobs.said(folder)
    return [read(folder, k) for k in range(ranks)]


def read(folder: Path, rank: int) -> dict[str, Any]:
    found: dict[str, Any] = torch.load(folder / f"rank-{rank}.pt", weights_only=False)
    return found


def test_two_ranks_find_what_one_finds(tmp_path: Path) -> None:
    one = alone(tmp_path / "one")
    for found in launched(2, tmp_path / "two"):
        for name in ("regression", "each", "again"):
            assert found[name] == one[name]
        for name in ("line", "module"):
            assert all(found[name][k].equal(t) for k, t in one[name].items())
        assert "number of ranks" in found["other"]
    assert {"test/rmse", "test/r2", "test/loss"} <= {*one["regression"]}
    assert one["again"]["val_acc"][2] > 0.4
    assert one["again"]["local/lr"] == {1: 0.3, 2: 0.3, 3: 0.15, 4: 0.075}
    assert "acc" not in one["again"]  # metrics rest in training
