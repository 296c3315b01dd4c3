"""The benchmarks that a GPU is to run, and others: each way and script, tiny, on a CPU."""

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from problems import cpu

FOLDER = Path(__file__).parent.parent / "benchmarks"
SCRIPT = (FOLDER / "gpu.sh").read_text()
NAMED = ",".join(re.findall(r"\b(?:EAGER|COMPILED)=(\S+)", SCRIPT)).split(",")
WAYS = sorted({*NAMED, "stacked50-graph"})


@pytest.fixture(autouse=True)
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Imports a script of the folder, whose scripts import each other."""
    monkeypatch.syspath_prepend(str(FOLDER))
    return import_module


@pytest.fixture
def run(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    benchmarks: Callable[[str], Any],
) -> Callable[..., str]:
    """Runs a script with these arguments, and returns what it prints."""

    def printed(script: str, *arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", [f"{script}.py", *arguments])
        benchmarks(script).main()
        return capsys.readouterr().out

    return printed


@pytest.mark.parametrize("command", ["right", "fast"])
def test_the_script_lays_the_package_out_as_it_is_installed(command: str, tmp_path: Path) -> None:
    """The machine has no installed package."""
    out = tmp_path / "out"
    environment = {**os.environ, "DEVICE": "cpu", "PYTHON": "true", "FL_SIMULATOR": str(tmp_path)}
    script = ["bash", str(FOLDER / "gpu.sh"), command, str(out)]
    said = subprocess.run(script, env=environment, capture_output=True, text=True, check=False)
    assert "FAILED" not in said.stdout
    assert not said.stderr
    assert (out / f"{command}.txt").read_text().count("== true") >= 4
    assert (Path(f"{out}.copy") / "fl_lightning" / "callbacks" / "__init__.py").is_file()


def test_the_script_names_all_packages_that_the_machine_needs() -> None:
    project = tomllib.loads((FOLDER.parent / "pyproject.toml").read_text())["project"]
    needed = {re.split("[<>=]", each)[0] for each in project["dependencies"]}
    assert needed <= {*re.findall(r"[a-z][\w.-]*\w", SCRIPT.partition("set -u")[0])}


@cache
def trained(way: str) -> Any:
    given = {"clients": 2, "samples": 4, "batch": 2}
    run = import_module("contest").federation(cpu(), "mlp", "fedtoga", way=way, **given)
    run.train_round()
    return run


@pytest.mark.parametrize("way", WAYS)
def test_every_way_trains_as_one_client_after_another(way: str, traces: list[Any]) -> None:
    run = trained(way)
    torch.testing.assert_close(run.w, trained("sequential").w, rtol=0, atol=1e-6)
    assert bool(traces) == ("compile" in way)
    assert getattr(run.local_training.executor, "graphs", True)


@pytest.mark.parametrize(
    ("way", "operations", "casts"), [("sequential", 100, 6), ("stacked2", 142, 10)]
)
def test_a_step_of_lenet_asks_few_operations_of_a_gpu(
    way: str, operations: int, casts: int, benchmarks: Callable[[str], Any]
) -> None:
    counts = benchmarks("launches").step("lenet", "fedtoga", way)
    assert counts.total() <= operations
    assert counts["cast"] <= casts
    assert counts["convolution"] == 2 * counts["_fused_sgd_"] * 2


OUTSIDE = "--models linear --methods fedavg --rounds 1 --ways"
STEPS = "--model lenet --clients 2 --samples 4 --rounds 1 --algorithm fedtoga --only graph"
SHOWN = {
    f"local_steps {STEPS}": r"predicted 0.21 s(.|\n)*^=> lenet, fedtoga, 32-true: best is graph",
    "ours --model mlp --way branches --clients 1 --samples 4 --test 4 --evaluate-every 2 "
    "--rounds 2": r"^=> mlp fedavg 32-true: branches",
    f"outside {OUTSIDE} sequential stacked10": r"^\| linear \| fedavg \| stacked10 \|",
    f"outside {OUTSIDE} sequential --profile": "function calls",
    "ceilings --clients 2 --batch 2 --times 1 --megabytes 1": "(channels_last(.|\n)*){7}",
}
"""Commands, and what they print."""


@pytest.mark.parametrize("command", SHOWN)
def test_a_script_measures(command: str, run: Callable[..., str]) -> None:
    printed = run(*command.split())
    assert "FAILED" not in printed
    assert re.search(SHOWN[command], printed, re.MULTILINE)


def test_the_parts_of_a_round_are_timed(
    run: Callable[..., str],
    benchmarks: Callable[[str], Any],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    split = benchmarks("split")
    monkeypatch.setattr(split.Federation, "evaluate", split.evaluate, raising=False)
    for _, owner, names in split.PARTS:  # which the script wraps
        for name in names:
            monkeypatch.setattr(owner, name, getattr(owner, name))
    trace = tmp_path / "trace.json"
    arguments = f"--model mlp --samples 4 --rounds 1 --way branches --profile {trace}"
    assert "=> mlp, fedavg, 32-true, branches: neither gradient" in run("split", *arguments.split())
    assert trace.stat().st_size


def test_runs_as_one_program_are_timed_beside_the_same_alone(run: Callable[..., str]) -> None:
    arguments = "--model mlp --runs 2 --clients 2 --samples 4 --turns 1 --way stacked-graph"
    printed = run("sweep", *arguments.split(), "--rounds", "1")
    [off] = re.findall(r"differ by up to (\S+)", printed)
    assert float(off) < 1e-6
    assert "=> mlp, fedavg, 32-true: 2 runs as one program take" in printed


def test_random_combinations_are_trained_in_every_way(
    run: Callable[..., str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = "--first", "28", "--count", "1"
    ways = "equal branches 1, equal resumed 1, equal stacked 1, equal together 1\n"
    assert run("combinations", *arguments) == ways
    assert re.fullmatch(r"28 [0-9a-f]{16}\n", run("combinations", *arguments, "--digests"))


def test_the_chart_of_speeds_reads_the_table_of_the_guide(benchmarks: Callable[[str], Any]) -> None:
    ways, rows = benchmarks("speed_figure").ratios()
    assert len(ways) == 3
    assert len(rows) == 4
    assert rows["Flower: pfl's own CIFAR-10 benchmark"] == ["1.9", "2.8", "3.8"]
