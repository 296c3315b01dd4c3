"""Options and fixtures shared by the tests."""

from collections.abc import Callable
from typing import Any

import pytest
import refusals
import runs
import torch
from lightning.fabric import Fabric

torch.set_num_threads(
    1
)  # tests run in parallel processes: more threads than cores make each many times slower


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--golden",
        default=None,
        help="folder of recorded trajectories to replay (default: tests/golden)",
    )


@pytest.fixture(autouse=True)
def _restore_global_state():
    """No test may lean on another's random numbers or number type."""
    torch.manual_seed(0)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture
def fabric() -> Fabric:
    return Fabric(accelerator="cpu", devices=1)


@pytest.fixture(scope="session")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The results of `refusals.scaffold`, which is what a run must have that ended early and was gone on with."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    refusals.scaffold(folder)
    return runs.results(folder)


@pytest.fixture
def traces(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The traced programs, which run as they are: to compile each takes seconds."""
    graphs: list[Any] = []

    def as_traced(graph: Callable[..., Any], *_: Any) -> Callable[..., Any]:
        graphs.append(graph)
        return graph

    monkeypatch.setattr(torch._inductor, "compile", as_traced)
    return graphs
