"""Ranks on several machines: launchers that share no memory, only the run's folder."""

import os
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import runs
from lightning.fabric.plugins.environments.lightning import find_free_network_port
from locations import ROOT

from fl_lightning.distributed.heartbeat import Heartbeat
from fl_lightning.runs.lock import RunLock

OPTIONS = [
    "--algorithm",
    "scaffold",
    "--clients",
    "8",
    "--participation",
    "0.6",
    "--rounds",
    "3",
    "--deterministic",
]
"""A client's rows are written on one machine and read on the other."""

BINARIES = Path(sys.executable).parent

Launch = Callable[[int, int], tuple[list[str], dict[str, str]]]
"""`launch(node, port)`: the command up to the recipe's options, and its environment."""


def fabric_run(node: int, port: int) -> tuple[list[str], dict[str, str]]:
    ranks = ["--accelerator", "cpu", "--devices", "1", "--num-nodes", "2"]
    where = ["--node-rank", str(node), "--main-address", "127.0.0.1", "--main-port", str(port)]
    return [f"{BINARIES}/fabric", "run", *ranks, *where, "recipes/digits.py"], {}


PYTHON = ["recipes/digits.py", "--accelerator", "cpu", "--num-nodes", "2"]


def torchrun(node: int, port: int) -> tuple[list[str], dict[str, str]]:
    where = [f"--node-rank={node}", "--master-addr=127.0.0.1", f"--master-port={port}"]
    return [f"{BINARIES}/torchrun", "--nnodes=2", "--nproc-per-node=1", *where, *PYTHON], {}


def slurm(node: int, port: int) -> tuple[list[str], dict[str, str]]:
    """What `srun` sets for each task."""
    variables = {
        "NTASKS": 2,
        "NTASKS_PER_NODE": 1,
        "NNODES": 2,
        "PROCID": node,
        "LOCALID": 0,
        "NODEID": node,
    }
    named = {"JOB_ID": "1", "STEP_ID": "0", "JOB_NAME": "digits", "NODELIST": "127.0.0.1"}
    environment = {f"SLURM_{name}": str(value) for name, value in {**variables, **named}.items()}
    return [sys.executable, *PYTHON], {**environment, "MASTER_PORT": str(port)}


def begin(launch: Launch, folder: Path) -> list[subprocess.Popen[str]]:
    port = find_free_network_port()
    alike = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "CUDA_VISIBLE_DEVICES": "",
    }
    nodes = []
    for node in range(2):
        command, environment = launch(node, port)
        command = [*command, *OPTIONS, "--run-dir", str(folder)]
        pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        nodes.append(subprocess.Popen(command, env={**alike, **environment}, cwd=ROOT, **pipe))
    return nodes


def end(nodes: list[subprocess.Popen[str]]) -> tuple[list[int], str]:
    """The exit codes, and what the launchers said."""
    said = []
    try:
        said = [node.communicate(timeout=120)[0] for node in nodes]
    finally:
        for node in nodes:
            node.kill()
    return [node.returncode for node in nodes], "\n".join(said)


@pytest.fixture(scope="module")
def one_rank(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    folder = tmp_path_factory.mktemp("one") / "run"
    argv = [*OPTIONS, "--run-dir", str(folder), "--accelerator", "cpu"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["recipes/digits.py", *argv])
        runpy.run_path(str(ROOT / "recipes/digits.py"), run_name="__main__")
    return runs.results(folder)


@pytest.mark.parametrize(
    "launch", [fabric_run, torchrun, slurm], ids=["fabric run", "torchrun", "SLURM"]
)
def test_two_machines_train_what_one_rank_trains_to_the_last_bit(
    launch: Launch, one_rank: dict[str, object], tmp_path: Path
) -> None:
    codes, said = end(begin(launch, tmp_path / "run"))
    assert codes == [0, 0], said
    assert "2 rank(s) on cpu" in said
    assert runs.results(tmp_path / "run") == one_rank


def is_not_there(*_: object) -> None:
    raise FileNotFoundError


def elsewhere(begin: Callable[..., None], whereabouts: Heartbeat, path: Path, *rest: int) -> None:
    begin(whereabouts, path.parent.with_name("elsewhere") / path.name, *rest)


def test_a_machine_with_a_folder_of_its_own_is_refused_in_one_sentence(tmp_path: Path) -> None:
    without_lock = runs.at_call(1, RunLock, "share", is_not_there, rank=1)
    with_own_file = runs.at_call(1, Heartbeat, "__init__", elsewhere, rank=1)
    folder = tmp_path / "run"
    codes = runs.end(
        runs.begin(folder, ranks=2, prepare=lambda rank: (without_lock(rank), with_own_file(rank)))
    )
    assert codes == [2, 2], runs.said(folder)
    assert runs.said(folder).count("error: ") == 1
    assert (
        f"error: rank 0 does not see what rank 1 wrote in {folder}: give all machines"
        in runs.said(folder)
    )
