"""A program whose trainer launches several ranks, each of which runs it from the top."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from locations import ROOT

PROGRAM = ROOT / "tests" / "helpers" / "fit_program.py"


def results(ranks: int, folder: Path) -> list[dict[str, Any]]:
    """What every rank has found."""
    folder.mkdir()
    command = [sys.executable, str(PROGRAM), str(ranks), str(folder)]
    variables = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command,
        env=variables,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [torch.load(folder / f"rank-{k}.pt", weights_only=False) for k in range(ranks)]


@pytest.mark.slow
def test_two_ranks_find_what_one_finds(tmp_path: Path) -> None:
    (alone,) = results(1, tmp_path / "one")
    for found in results(2, tmp_path / "two"):
        for name in ("regression", "each", "again"):
            assert found[name] == alone[name]
        for name in ("line", "module"):
            assert all(found[name][k].equal(t) for k, t in alone[name].items())
        assert "number of ranks" in found["other"]
    assert {"test/rmse", "test/r2", "test/loss"} <= {*alone["regression"]}
    assert alone["again"]["val_acc"][2] > 0.4
    assert "acc" not in alone["again"]  # metrics rest in training
