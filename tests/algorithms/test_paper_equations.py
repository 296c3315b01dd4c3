"""Methods equal their papers' equations, which benchmarks/peers/equations.py has in NumPy."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "peers"))

import equations
import run_ours as ours
from problem import ADAPTIVE, COEFFICIENTS, ROBUST, UNEQUAL_STEPS, Case


@pytest.mark.parametrize("method", [m for m in COEFFICIENTS if m != "scaffold_first"])
def test_method_equals_its_equation(method: str) -> None:
    case = Case(
        method,
        by_size=method not in ("scaffold", "feddyn", "fedsam", *ROBUST),
        everyone=method in ROBUST,
        server_lr=0.1 if method in ADAPTIVE else 1.0,
        rounds=4,
        **(UNEQUAL_STEPS if method == "fednova" else {}),
    )
    np.testing.assert_allclose(ours.path(case), equations.path(case), rtol=0, atol=1e-12)
