"""The operations that a local step asks of a GPU stay as few as they are."""

import runpy
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return runpy.run_path(str(BENCHMARKS / "launches.py"))


@pytest.mark.parametrize(
    ("way", "operations", "casts"), [("sequential", 100, 6), ("stacked2", 142, 10)]
)
def test_operations_of_a_step_of_lenet(way, operations, casts, names):
    counts: Counter[str] = names["step"]("lenet", "fedtoga", way)
    assert counts.total() <= operations
    assert counts["cast"] <= casts
    assert counts["convolution"] == 2 * counts["_fused_sgd_"] * 2
