"""How many ranks and threads a run has where nobody says so, and who is obeyed where somebody does."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import lives
import pytest
import torch
from refusals import experiment, refused

from fl_lightning import machine
from fl_lightning.machine import Machine
from fl_lightning.options import Launch
from fl_lightning.ranks import Launcher, Plan

ROOT = Path(__file__).resolve().parents[1]
GIB = 1024**3


def planned(devices: str = "auto", clients: int = 10, cores: int = 8, memory: int = 64 * GIB, **rest: Any) -> Plan:
    there = Machine(cores, memory, rest.pop("threads", None))
    return Plan.make(devices, rest.pop("cpu", True), clients, there, **rest)


@pytest.mark.parametrize(
    ("given", "devices", "threads"),
    [
        ({}, "8", 1),
        ({"clients": 3}, "3", 2),
        ({"cores": 16}, "10", 1),
        ({"memory": 16 * GIB}, "5", 1),
        ({"memory": GIB}, "1", 8),
        ({"threads": 2}, "4", None),
        ({"threads": 16}, "1", None),
        ({"alone": True}, "1", 8),
        ({"small": True}, "1", 1),
        ({"cpu": False}, "1", None),
        ({"devices": "4"}, "4", 2),
        ({"devices": "4", "threads": 1}, "4", None),
        ({"devices": "4", "small": True}, "4", 1),
        ({"devices": "0,2", "cpu": False}, "0,2", None),
        ({"launcher": Launcher(4)}, "4", 2),
        ({"launcher": Launcher(4, cores=8)}, "4", 8),
        ({"launcher": Launcher(4), "cpu": False}, "4", None),
    ],
    ids=str,
)
def test_ranks_and_threads(given: dict[str, Any], devices: str, threads: int | None) -> None:
    plan = planned(**given)
    assert (plan.devices, plan.threads, plan.note) == (devices, threads, "")


def test_one_rank_of_a_launcher_is_kept_and_the_flags_for_more_are_said() -> None:
    plan = planned(launcher=Launcher(1, "--nproc-per-node {} to torchrun"))
    assert (plan.devices, plan.threads) == ("1", 8)
    assert plan.note == "note: 8 ranks are usually faster than this one: add --nproc-per-node 8 to torchrun"
    for quiet in ({"small": True}, {"clients": 1}, {"devices": "1"}, {"cpu": False}):
        assert not planned(launcher=Launcher(1, "--nproc-per-node {} to torchrun"), **quiet).note


def test_more_ranks_than_cores_are_obeyed_with_a_note() -> None:
    plan = planned(devices="9")
    assert (plan.devices, plan.threads) == ("9", 1)
    assert plan.note.startswith("note: 9 ranks share 8 core(s)")
    assert not planned(launcher=Launcher(9, cores=1)).note


FABRIC_RUN = {"LT_CLI_USED": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "x"}
TORCHRUN = {"LOCAL_RANK": "1", "WORLD_SIZE": "6", "LOCAL_WORLD_SIZE": "3", "TORCHELASTIC_RUN_ID": "x"}
SBATCH = {"SLURM_NTASKS": "8", "SLURM_NNODES": "2", "SLURM_JOB_NAME": "mine"}
SLURM = {**SBATCH, "SLURM_STEP_ID": "0"}
LIGHTNING = {"LOCAL_RANK": "1", "WORLD_SIZE": "4"}


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Without what a launcher, or who runs the tests, has set."""
    for name in ("OMP_NUM_THREADS", *FABRIC_RUN, *TORCHRUN, *SLURM, "SLURM_CPUS_PER_TASK"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


@pytest.mark.parametrize(
    ("variables", "launcher"),
    [
        ({}, None),
        (FABRIC_RUN, (2, "--devices {} to fabric run", None)),
        (TORCHRUN, (3, "--nproc-per-node {} to torchrun", None)),
        (SLURM, (4, "--ntasks-per-node {} --cpus-per-task 1 to srun", None)),
        ({**SLURM, "SLURM_CPUS_PER_TASK": "6"}, (4, "--ntasks-per-node {} --cpus-per-task 1 to srun", 6)),
        (SBATCH, (1, "--ntasks-per-node {} --cpus-per-task 1 to srun", None)),
        ({**SLURM, "SLURM_JOB_NAME": "bash"}, None),
        (LIGHTNING, (2, "", None)),
    ],
    ids=["none", "fabric run", "torchrun", "SLURM", "SLURM with cores", "no srun", "SLURM's shell", "Lightning"],
)
def test_a_launcher_is_known_by_its_variables(
    variables: dict[str, str], launcher: Any, environment: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        environment.setenv(name, value)
    found = Launcher.of_this_process(num_nodes=2)
    assert found == (launcher and Launcher(*launcher))


@pytest.mark.parametrize(
    ("named", "by_fabric_run", "threads"),
    [
        (None, False, None),
        ("3", False, 3),
        ("3,1", False, 3),
        ("many", False, None),
        ("3", True, 3),
        (str(len(os.sched_getaffinity(0))), True, None),
    ],
)
def test_threads_are_the_users_unless_fabric_run_set_them(
    named: str | None, by_fabric_run: bool, threads: int | None, environment: pytest.MonkeyPatch
) -> None:
    """It sets them to all cores for any number of ranks."""
    if named:
        environment.setenv("OMP_NUM_THREADS", named)
    if by_fabric_run:
        environment.setenv("LT_CLI_USED", "1")
    assert Machine.here().threads == threads


def test_quotas_and_limits_of_control_groups_bound_the_machine(tmp_path: Path, environment: pytest.MonkeyPatch) -> None:
    """Those of the group itself and of every group above it."""
    (tmp_path / "user/job").mkdir(parents=True)
    (tmp_path / "process").write_text("9:name=systemd:/\n0::/user/job\n")
    for name, contents in {
        "user/job/cpu.max": "max 100000\n",
        "user/cpu.max": "150000 100000\n",
        "user/job/memory.max": f"{GIB}\n",
        "memory.max": "max\n",
    }.items():
        (tmp_path / name).write_text(contents)
    limits = machine.limits
    assert list(limits("cpu.max", tmp_path, tmp_path / "process")) == ["max 100000", "150000 100000"]
    environment.setattr(machine, "limits", lambda name: limits(name, tmp_path, tmp_path / "process"))
    here = Machine.here()
    assert (here.cores, here.memory) == (1, GIB)
    assert list(limits("cpu.max", tmp_path, tmp_path / "missing")) == []


@pytest.mark.parametrize("devices", ["0", "many", "", "-3", "1.5", "0,", "auto,1"])
def test_devices_are_auto_or_a_number_or_a_list(devices: str, tmp_path: Path, capsys: Any) -> None:
    if devices == "0,":  # the first GPU, for Fabric
        assert Launch(devices=devices).devices == "0,"
        return
    assert f"devices is auto, or a number of ranks of at least 1, or which GPUs, e.g. 0,2, not {devices!r}" in refused(
        capsys, tmp_path / "run", f"--devices={devices}"
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_refused(tmp_path: Path, capsys: Any) -> None:
    assert "CUDAAccelerator" in refused(capsys, tmp_path / "run", "--accelerator", "cuda", "--devices", "auto")


def test_a_command_line_from_within_a_program_starts_no_ranks(tmp_path: Path, capsys: Any) -> None:
    """They would be that program, started anew."""
    experiment(tmp_path / "run").run()
    assert "; 1 rank(s) on cpu" in capsys.readouterr().out


RECIPE = """
from refusals import digits
from fl_lightning.experiment import Experiment
from fl_lightning.models import mlp

if __name__ == "__main__":
    Experiment([digits], [mlp], clients=6, participation=0.5, batch_size=64, rounds=2).run()
"""


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2 or torch.cuda.is_available(), reason="one core, or a GPU")
def test_a_recipe_starts_its_ranks_by_itself_and_another_number_goes_on(tmp_path: Path, capsys: Any) -> None:
    """Two ranks where there are two cores, at most three; then one."""
    (tmp_path / "recipe.py").write_text(RECIPE)
    environment = {k: v for k, v in os.environ.items() if k not in ("LOCAL_RANK", "WORLD_SIZE", "MASTER_PORT")}
    environment |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "tests")}
    command = [sys.executable, "recipe.py", "--run-dir", "run"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    ranks = min(3, len(os.sched_getaffinity(0)))
    assert f"; {ranks} rank(s) on cpu, 1 thread(s) each" in done.stdout
    experiment(tmp_path / "run", "--resume", "--rounds", "4").run()
    assert "; 1 rank(s) on cpu" in capsys.readouterr().out
    assert [row["round"] for row in lives.results(tmp_path / "run")["metrics"]] == ["1", "2", "3", "4"]
