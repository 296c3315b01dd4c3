"""Fixtures shared by the tests, and what is set in torch and other packages before them."""

import gc
import os
import signal
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import jobs
import lightning.fabric.fabric
import matplotlib
import pictures
import problems
import pytest
import refusals
import sklearn.datasets
import torch
from lightning.fabric import Fabric
from recorded_graphs import recorded
from tensorboard.summary.writer import event_file_writer

import fl_lightning.callbacks.checkpoint
from fl_lightning.executors import replay

fl_lightning.callbacks.checkpoint.SPACING = 0  # every n-th round is saved, however short
pictures.leave_out()
matplotlib.rcParams["savefig.dpi"] = 30  # pictures are drawn, and not looked at
# TensorBoard sorts files of one second by their number as a text: 10 would come before 9
event_file_writer._global_uid = event_file_writer.AtomicCounter(10**6)
sklearn.datasets.load_digits = cache(sklearn.datasets.load_digits)  # which parses a text
registry = lightning.fabric.fabric
registry._load_external_callbacks = cache(registry._load_external_callbacks)  # of all packages
torch.cuda.is_available = cache(torch.cuda.is_available)  # which a trace asks at each operation
if not torch.cuda.is_available():  # or each seed is kept, with a stack, until there is a GPU
    torch.cuda.manual_seed_all = torch.xpu.manual_seed_all = lambda seed: None
torch.set_num_threads(1)  # tests run in parallel processes that share the cores
os.fsync = lambda file: None  # no test cuts the power, and a disk takes its time
signal.signal(signal.SIGINT, signal.default_int_handler)  # programs begun with `&` ignore it


def pytest_collection_finish() -> None:
    """What has been imported stays: a garbage collector that looks at it takes 0.15 s each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _restore_global_state():
    """No test may depend on another's random numbers or number type."""
    torch.manual_seed(0)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture
def fabric() -> Fabric:
    return problems.cpu()


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], dict[str, Any]]:
    """Results of `jobs.experiment` by number of ranks, when nothing interrupts it."""

    @cache
    def results(ranks: int) -> dict[str, Any]:
        folder = tmp_path_factory.mktemp("reference") / "run"
        assert jobs.end(jobs.begin(folder, ranks=ranks)) == [0] * ranks, jobs.said(folder)
        return jobs.results(folder)

    return results


@pytest.fixture
def uninterrupted(reference: Callable[[int], dict[str, Any]]) -> dict[str, Any]:
    """The reference results on one rank."""
    return reference(1)


@pytest.fixture
def sentence(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """`refusals.sentence`: the one-line error message of a call."""
    return partial(refusals.sentence, capsys)


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Callable[..., str]:
    """`refusals.refused` of an experiment in the folder `run`."""
    return partial(refusals.refused, capsys, tmp_path / "run")


@pytest.fixture
def traces(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The traced programs, which run as they are: compiling each takes seconds."""
    graphs: list[Any] = []

    def as_traced(graph: Callable[..., Any], *_: Any) -> Callable[..., Any]:
        graphs.append(graph)
        return graph

    monkeypatch.setattr(torch._inductor, "compile", as_traced)
    return graphs


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The steps that are CUDA graphs, which recordings stand in for."""
    steps: list[Any] = []

    def record(step: Callable[[], None], *rest: Any) -> Callable[[], None]:
        steps.append(step)
        return recorded(step, *rest)

    monkeypatch.setattr(replay, "captured", record)
    return steps
