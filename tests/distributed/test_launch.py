"""How many ranks and threads a run has where nobody says so, and who is obeyed where somebody does."""

import os
import subprocess
import sys
import types
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import runs
import torch
import yaml
from lightning.fabric.accelerators.cuda import CUDAAccelerator
from lightning.fabric.accelerators.mps import MPSAccelerator
from locations import ROOT
from refusals import experiment, refused

from fl_lightning import experiment as experiments
from fl_lightning.distributed import launch as ranks
from fl_lightning.distributed.launch import Launch, Launcher, Plan
from fl_lightning.distributed.resources import Machine

GIB = 1024**3


def planned(
    devices: str = "auto", clients: int = 10, cores: int = 8, memory: int = 64 * GIB, **rest: Any
) -> Plan:
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
        ({"launcher": Launcher(4, cores=64)}, "4", 8),
        ({"launcher": Launcher(4), "cpu": False}, "4", None),
        ({"before": (2, 3), "memory": GIB}, "2", 3),
        ({"before": (2, 3), "small": True}, "2", 3),
        ({"before": (3, 3)}, "8", 1),
        ({"before": (4, 3), "threads": 2}, "4", None),
        ({"before": (5, 1), "threads": 2}, "4", None),
        ({"before": (2, 3), "devices": "4"}, "4", 2),
        ({"before": (2, 3), "launcher": Launcher(4)}, "4", 2),
        ({"before": (4, 1), "launcher": Launcher(4)}, "4", 1),
        ({"before": (2, 3), "alone": True}, "1", 8),
        ({"before": (2, 3), "cpu": False}, "1", None),
    ],
    ids=str,
)
def test_ranks_and_threads(given: dict[str, Any], devices: str, threads: int | None) -> None:
    plan = planned(**given)
    assert (plan.devices, plan.threads, plan.note) == (devices, threads, "")


def test_one_rank_of_a_launcher_is_kept_and_the_flags_for_more_are_said() -> None:
    plan = planned(launcher=Launcher(1, "--nproc-per-node {} to torchrun"))
    assert (plan.devices, plan.threads) == ("1", 8)
    assert (
        plan.note
        == "note: 8 ranks are usually faster than this one: add --nproc-per-node 8 to torchrun"
    )
    for quiet in ({"small": True}, {"clients": 1}, {"devices": "1"}, {"cpu": False}):
        assert not planned(launcher=Launcher(1, "--nproc-per-node {} to torchrun"), **quiet).note


def test_more_ranks_than_cores_are_obeyed_with_a_note() -> None:
    plan = planned(devices="9")
    assert (plan.devices, plan.threads) == ("9", 1)
    assert plan.note.startswith("note: 9 ranks share 8 core(s)")
    assert planned(launcher=Launcher(9)).note == plan.note
    assert not planned(launcher=Launcher(9, binds=True)).note


FABRIC_RUN = {
    "LT_CLI_USED": "1",
    "LOCAL_RANK": "0",
    "LOCAL_WORLD_SIZE": "2",
    "TORCHELASTIC_RUN_ID": "x",
}
TORCHRUN = {
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "6",
    "LOCAL_WORLD_SIZE": "3",
    "TORCHELASTIC_RUN_ID": "x",
}
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
        (SLURM, (4, "--ntasks-per-node {} --cpus-per-task 1 to srun", 2, True)),
        (
            {**SLURM, "SLURM_CPUS_PER_TASK": "6"},
            (4, "--ntasks-per-node {} --cpus-per-task 1 to srun", 6, True),
        ),
        (
            {**SLURM, "SLURM_NTASKS": "10"},
            (5, "--ntasks-per-node {} --cpus-per-task 1 to srun", None, True),
        ),
        (SBATCH, (1, "--ntasks-per-node {} --cpus-per-task 1 to srun", 2, True)),
        ({**SLURM, "SLURM_JOB_NAME": "bash"}, None),
        (LIGHTNING, (2, "", None)),
    ],
    ids=[
        "none",
        "fabric run",
        "torchrun",
        "SLURM",
        "SLURM with cores",
        "SLURM without room for as many",
        "no srun",
        "SLURM's shell",
        "Lightning",
    ],
)
def test_a_launcher_is_known_by_its_variables(
    variables: dict[str, str], launcher: Any, environment: pytest.MonkeyPatch
) -> None:
    """This one sees two of the machine's eight cores."""
    environment.setattr(ranks, "affinity", lambda: {0, 1})
    environment.setattr(ranks, "physical", len)
    environment.setattr(os, "cpu_count", lambda: 8)
    for name, value in variables.items():
        environment.setenv(name, value)
    found = Launcher.of_this_process(num_nodes=2)
    assert found == (launcher and Launcher(*launcher))


@pytest.mark.parametrize("devices", ["auto", "3", "-1", "0,", "0,2"])
def test_devices_are_auto_or_a_number_or_a_list(devices: str) -> None:
    """For Fabric `0,` is the first GPU, and -1 all of them."""
    assert Launch(devices=devices).devices == devices


@pytest.mark.parametrize("devices", ["0", "many", "", "-3", "1.5", "auto,1"])
def test_other_devices_are_refused(devices: str, tmp_path: Path, capsys: Any) -> None:
    assert (
        f"devices is auto, or a number of ranks of at least 1, or which GPUs, e.g. 0,2, not {devices!r}"
        in refused(capsys, tmp_path / "run", f"--devices={devices}")
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_refused(tmp_path: Path, capsys: Any) -> None:
    assert "CUDAAccelerator" in refused(
        capsys, tmp_path / "run", "--accelerator", "cuda", "--devices", "auto"
    )


def test_a_command_line_from_within_a_program_starts_no_ranks(tmp_path: Path, capsys: Any) -> None:
    """They would be that program, started anew."""
    experiment(tmp_path / "run").run()
    assert "; 1 rank(s) on cpu" in capsys.readouterr().out


def test_only_the_program_that_lightning_would_start_anew_starts_ranks(
    environment: pytest.MonkeyPatch,
) -> None:
    program = types.SimpleNamespace(__file__=str(ROOT / "recipes/cifar10.py"))
    environment.setitem(sys.modules, "__main__", program)
    environment.chdir(ROOT)
    environment.setattr(sys, "argv", ["recipes/cifar10.py", "--rounds", "2"])
    assert ranks._restartable()
    program.__file__ = pytest.__file__
    assert not ranks._restartable(), "pytest runs the recipe"
    del program.__file__
    assert not ranks._restartable(), "a notebook"


@pytest.mark.parametrize(
    ("options", "visits"), [((), 3), (("--executor", "stacked", "--parallel-clients", "2"), 1)]
)
def test_stacked_clients_are_counted_in_full_groups(
    options: tuple[str, ...], visits: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[int] = []
    monkeypatch.setattr(
        experiments, "launched", lambda launch, clients, **_: counted.append(clients)
    )
    experiment(tmp_path / "run", *options).fabric([], [])
    assert counted == [visits]


def test_lightnings_variable_for_an_accelerator_counts_only_under_fabric_run(
    environment: pytest.MonkeyPatch,
) -> None:
    environment.setenv("LT_ACCELERATOR", "cuda")
    asked: list[str] = []
    environment.setattr(
        ranks, "_accelerator", lambda accelerator: asked.append(accelerator) or accelerator
    )
    environment.setattr(ranks, "Fabric", lambda **_: types.SimpleNamespace(launch=lambda: None))
    for _ in range(2):
        ranks.launched(Launch(accelerator="cpu"), 1, alone=True, small=False, before=None)
        environment.setenv("LT_CLI_USED", "1")
    assert asked == ["cpu", "cuda"]


@pytest.mark.parametrize(
    "by_fabric_run", [None, "", "auto"], ids=["python", "fabric run", "fabric run auto"]
)
def test_auto_is_the_cpu_of_a_mac(
    by_fabric_run: str | None, environment: pytest.MonkeyPatch
) -> None:
    """Of this machine, whose GPU the accelerator of Macs would refuse."""
    environment.setattr(CUDAAccelerator, "is_available", lambda: False)
    environment.setattr(MPSAccelerator, "is_available", lambda: True)
    environment.setenv("LT_ACCELERATOR", by_fabric_run or "")
    if not by_fabric_run:
        environment.delenv("LT_ACCELERATOR")
    if by_fabric_run is not None:
        environment.setenv("LT_CLI_USED", "1")
    fabric = ranks.launched(Launch(), 1, alone=True, small=True, before=None)
    assert fabric.device.type == "cpu"


def test_auto_is_a_gpu_that_is_there(environment: pytest.MonkeyPatch) -> None:
    environment.setattr(CUDAAccelerator, "is_available", lambda: True)
    assert ranks._accelerator("auto") == "cuda"


@pytest.mark.parametrize("named", ["mps", "gpu", "tpu"])
def test_an_accelerator_without_float64_is_refused(
    named: str, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MPSAccelerator, "is_available", lambda: True)
    said = refused(capsys, tmp_path / "run", "--accelerator", named)
    assert f"not on {named}: add --accelerator cpu" in said


@pytest.mark.parametrize("machines", [1, 2])
def test_whom_a_program_without_a_launcher_waits_for_is_told(
    machines: int, environment: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    environment.setattr(ranks, "Fabric", lambda **_: types.SimpleNamespace(launch=lambda: None))
    ranks.launched(
        Launch(accelerator="cpu", num_nodes=machines), 1, alone=True, small=True, before=None
    )
    assert ("waiting for 2 machines to start this program" in capsys.readouterr().out) == (
        machines == 2
    )


def test_threads_of_one_rank_are_only_ever_lowered(environment: pytest.MonkeyPatch) -> None:
    """A user who has set fewer in the program keeps them."""
    told: list[int] = []
    environment.setattr(ranks, "Fabric", lambda **_: types.SimpleNamespace(launch=lambda: None))
    environment.setattr(torch, "set_num_threads", told.append)
    for now in (64, 1):
        environment.setattr(torch, "get_num_threads", lambda now=now: now)
        ranks.launched(Launch(accelerator="cpu"), 1, alone=True, small=True, before=None)
    assert told == [1]


RECIPE = """
import os
from pathlib import Path
import torch
from refusals import digits
from fl_lightning.distributed import resources as machine
from fl_lightning.experiment import Experiment
from fl_lightning.models import mlp

if __name__ == "__main__":
    machine.MEMORY_OF_A_RANK *= int(os.environ.get("TIMES", 1))
    Experiment([digits], [mlp], clients=6, sampler=0.5, batch_size=64, checkpoint_every=1).run()
    Path(f"threads-{os.environ['LOCAL_RANK']}").write_text(str(torch.get_num_threads()))
"""


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_recipe_starts_its_ranks_by_itself_and_goes_on_with_as_many_or_another_number(
    tmp_path: Path, capsys: Any
) -> None:
    """As many as three clients and the machine allow; the second time memory would allow one; then one is told."""
    here = replace(Machine.here(), threads=None)
    started = here.ranks(clients=3)
    if started == 1:
        pytest.skip("this machine has room for one rank")
    (tmp_path / "recipe.py").write_text(RECIPE)
    others = {*LIGHTNING, "MASTER_ADDR", "MASTER_PORT", "NODE_RANK", "OMP_NUM_THREADS"}
    environment = {k: v for k, v in os.environ.items() if k not in others} | {
        "PYTHONPATH": f"{ROOT}:{ROOT}/tests/helpers"
    }
    command = [sys.executable, "recipe.py", "--accelerator", "cpu", "--run-dir", "run", "--rounds"]
    for more, times in (["1"], "1"), (["2", "--resume"], "1000"):
        alike = {"cwd": tmp_path, "env": {**environment, "TIMES": times}}
        done = subprocess.run(
            [*command, *more], **alike, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
        threads = here.cores // started
        assert f"; {started} rank(s) on cpu, {threads} thread(s) each" in done.stdout
        assert [file.read_text() for file in tmp_path.glob("threads-*")] == [str(threads)] * started
    made = yaml.safe_load((tmp_path / "run/environment.yaml").read_text())
    assert (made["ranks"], made["threads"]) == (started, threads)
    experiment(tmp_path / "run", "--resume", "--rounds", "3", "--checkpoint-every", "1").run()
    assert "; 1 rank(s) on cpu" in capsys.readouterr().out
    assert [row["round"] for row in runs.results(tmp_path / "run")["metrics"]] == ["1", "2", "3"]
