"""The benchmarks that a GPU is to run, and others: each way and script, tiny, on a CPU."""

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from problems import cpu

FOLDER = Path(__file__).parent.parent / "benchmarks"
SCRIPT = (FOLDER / "gpu.sh").read_text()
NAMED = ",".join(re.findall(r"\b(?:EAGER|COMPILED)=(\S+)", SCRIPT)).split(",")
WAYS = sorted({*NAMED, "stacked50-graph", "sequential"})


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


def test_the_package_that_the_script_lays_out_is_imported(tmp_path: Path) -> None:
    out = tmp_path / "out"
    code = "import fl_lightning.cli.recipes as r; print(r.FOLDER)"
    lines = re.findall(r"^rm -rf .*$", SCRIPT, re.MULTILINE)
    given = {**os.environ, "OUT": str(out), "PYTHONPATH": f"{out}.copy"}
    commands = f"cd {FOLDER.parent} && {lines[0]} && {sys.executable} -P -c '{code}'"
    found = subprocess.run(
        ["bash", "-c", commands], env=given, capture_output=True, text=True, check=True
    )
    assert Path(found.stdout.strip()) == Path(f"{out}.copy/fl_lightning/recipes")


def test_the_script_names_all_packages_that_the_machine_needs() -> None:
    project = tomllib.loads((FOLDER.parent / "pyproject.toml").read_text())["project"]
    needed = {re.split("[<>=]", each)[0] for each in project["dependencies"]}
    assert needed <= {*re.findall(r"[a-z][\w.-]*\w", SCRIPT.partition("set -u")[0])}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_trains_as_one_client_after_another(
    way: str, benchmarks: Callable[[str], Any], traces: list[Any]
) -> None:
    federation = benchmarks("contest").federation
    given = {"clients": 2, "samples": 4, "batch": 2}
    run, expected = (
        federation(cpu(), "mlp", "fedtoga", way=name, **given) for name in (way, "sequential")
    )
    for federated in (run, expected):
        federated.train_round()
    torch.testing.assert_close(run.w, expected.w, rtol=0, atol=1e-6)
    assert bool(traces) == ("compile" in way)
    assert getattr(run.local_training.executor, "graphs", True)


def test_ways_are_compared_and_their_predictions_printed(run: Callable[..., str]) -> None:
    arguments = "--model lenet --clients 2 --samples 4 --rounds 1 --algorithm fedtoga --only graph"
    printed = run("local_steps", *arguments.split())
    assert "FAILED" not in printed
    assert "predicted 0.21 s" in printed
    assert re.search(r"^=> lenet, fedtoga, 32-true: best is graph", printed, re.MULTILINE)


def test_rounds_with_evaluations_are_timed(run: Callable[..., str]) -> None:
    arguments = "--model mlp --way branches --clients 1 --samples 4 --test 4 --evaluate-every 2"
    assert "=> mlp fedavg 32-true: branches" in run("ours", *arguments.split(), "--rounds", "2")


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


def test_what_is_outside_of_steps_is_timed(run: Callable[..., str]) -> None:
    arguments = ["--models", "linear", "--methods", "fedavg", "--rounds", "1", "--ways"]
    printed = run("outside", *arguments, "sequential", "stacked10")
    ways = re.findall(r"^\| linear \| fedavg \| (\S+) \| \S+ \| \S+ \|$", printed, re.MULTILINE)
    assert ways == ["sequential", "stacked10"]
    assert "function calls" in run("outside", *arguments, "sequential", "--profile")


def test_ceilings_of_a_card_are_measured(run: Callable[..., str]) -> None:
    arguments = ["--clients", "2", "--batch", "2", "--times", "1", "--megabytes", "1"]
    assert run("ceilings", *arguments).count("channels_last") == 7


def test_random_combinations_are_trained_in_every_way(
    run: Callable[..., str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = "--first", "28", "--count", "1"
    assert run("combinations", *arguments) == "equal resumed 1, equal stacked 1, equal together 1\n"
    assert re.fullmatch(r"28 [0-9a-f]{16}\n", run("combinations", *arguments, "--digests"))
