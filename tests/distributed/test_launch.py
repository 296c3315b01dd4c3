"""The number of ranks and threads: the default, and that of a user or a launcher."""

import os
import types
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jobs
import pytest
import torch
from lightning.fabric.accelerators.cuda import CUDAAccelerator
from lightning.fabric.accelerators.mps import MPSAccelerator

from fl_lightning.distributed import launch
from fl_lightning.distributed.launch import launch_fabric, launch_same_ranks
from fl_lightning.distributed.launch_options import LaunchOptions
from fl_lightning.distributed.signals import FIRST_RANK
from fl_lightning.errors import UserError

WORLD = {"WORLD_SIZE": "6", "LOCAL_WORLD_SIZE": "3"}
TORCHRUN = {"LOCAL_RANK": "1", **WORLD, "TORCHELASTIC_RUN_ID": "x"}
SBATCH = {"SLURM_NTASKS": "8", "SLURM_NNODES": "2", "SLURM_JOB_NAME": "mine"}
SLURM = {**SBATCH, "SLURM_STEP_ID": "0", "SLURM_NTASKS_PER_NODE": "4"}


@pytest.fixture
def environment(monkeypatch):
    """Without variables of launchers and of the program that runs the tests."""
    others = "OMP_NUM_THREADS", "LT_CLI_USED", "SLURM_CPUS_PER_TASK"
    for name in (*others, *TORCHRUN, *SLURM):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


@pytest.fixture
def launched(environment):
    """Devices, and the threads of a rank, of a launch on 8 cores."""
    options: dict[str, Any] = {}
    threads: list[int] = []

    def fabric(**given):
        options.update(given)
        ranks = int(given["devices"]) if given["devices"].isdigit() else 2
        return types.SimpleNamespace(launch=lambda: None, world_size=ranks * given["num_nodes"])

    environment.setattr(launch, "Fabric", fabric)
    environment.setattr(launch, "available_cores", lambda: 8)
    environment.setattr(torch, "get_num_threads", lambda: 6)
    environment.setattr(torch, "set_num_threads", threads.append)

    def launched(variables: Mapping[str, str] = MappingProxyType({}), **given: Any) -> Any:
        for name, value in variables.items():
            environment.setenv(name, value)
        launch_fabric(LaunchOptions(accelerator="cpu", **given))
        assert FIRST_RANK not in os.environ
        return options["devices"], threads[-1] if threads else None

    return launched


TWO = {"num_nodes": 2}


@pytest.mark.parametrize(
    ("variables", "given", "devices", "threads"),
    [
        ({}, {}, "1", 6),  # a program may want fewer threads than there are cores
        ({}, {"devices": "4"}, "4", 2),
        ({}, {"devices": "9"}, "9", 1),
        ({}, {"devices": "0,2"}, "0,2", 4),
        ({}, {"devices": "4", **TWO}, "4", 2),
        ({"OMP_NUM_THREADS": "3"}, {"devices": "4"}, "4", None),
        (TORCHRUN, TWO, "3", 2),
        (SLURM, TWO, "4", 2),
        (SBATCH, TWO, "1", 6),
        ({**SLURM, "SLURM_JOB_NAME": "bash"}, TWO, "1", 6),
    ],
    ids=str,
)
def test_ranks_and_threads(variables, given, devices, threads, launched):
    """A launcher decides on the ranks of this machine; they share its cores as threads."""
    assert launched(variables, **given) == (devices, threads)


def test_another_number_of_ranks_than_the_launcher_has_started_is_refused(launched):
    for variables, ranks in ((SBATCH, 1), (TORCHRUN, 3)):
        with pytest.raises(UserError, match=f"devices is 2, but the launcher has started {ranks}"):
            launched(variables, devices="2", **TWO)


def test_a_rank_with_processors_of_its_own_takes_them_all(launched, environment):
    """As srun binds ranks; here two of four have the same."""

    def gather(every, mine):
        node, _ = mine
        every[:] = [mine, (node, [90]), mine, ("another machine", mine[1])]

    environment.setattr(torch.distributed, "is_initialized", lambda: True)
    environment.setattr(torch.distributed, "get_world_size", lambda: 4)
    environment.setattr(torch.distributed, "all_gather_object", gather)
    assert launched(SLURM, **TWO) == ("4", 4)


def test_a_prompt_has_one_rank(launched, environment):
    environment.setattr(launch, "_IS_INTERACTIVE", True)
    launched()
    with pytest.raises(UserError, match="one rank"):
        launched(devices="2")


def test_a_program_that_starts_on_several_machines_says_what_it_waits_for(launched, capsys):
    launched(num_nodes=2)
    assert "waiting for 2 machines" in capsys.readouterr().out
    launched()
    launched(TORCHRUN, num_nodes=2)
    assert not capsys.readouterr().out


@pytest.mark.parametrize("devices", ["0", "many", "", "-3", "1.5", "auto,1"])
def test_devices_are_a_number_or_a_list_or_auto(devices):
    """For Fabric `0,` is the first GPU, and -1 all of them."""
    for possible in ("auto", "3", "-1", "0,", "0,2"):
        assert LaunchOptions(devices=possible).devices == possible
    with pytest.raises(ValueError, match=f"devices is a number.* not '{devices}'"):
        LaunchOptions(devices=devices)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_refused(refused):
    assert "CUDAAccelerator" in refused("--accelerator", "cuda", "--devices", "auto")


@pytest.mark.parametrize("named", [None, "", "auto", "cpu"], ids=["python", "none", "auto", "cpu"])
def test_auto_is_the_cpu_of_a_mac(named, environment):
    """Also where `fabric run` names it by LT_ACCELERATOR."""
    environment.setattr(CUDAAccelerator, "is_available", lambda: False)
    environment.setattr(MPSAccelerator, "is_available", lambda: True)
    environment.setenv("LT_ACCELERATOR", "")  # so that it is undone: `launch_fabric` sets it
    environment.delenv("LT_ACCELERATOR")
    if named:
        environment.setenv("LT_ACCELERATOR", named)
    if named is not None:
        environment.setenv("LT_CLI_USED", "1")
    assert launch_fabric(LaunchOptions()).device.type == "cpu"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_no_step_of_adam_looks_for_the_library_of_a_gpu(environment):
    environment.setenv("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # as Lightning does
    launch_fabric(LaunchOptions(accelerator="cpu"))
    environment.setattr(torch.cuda, "is_available", torch.cuda.is_available.__wrapped__)
    environment.setattr(torch.cuda, "device_count", pytest.fail)
    w = torch.ones(1, requires_grad=True)
    w.sum().backward()
    torch.optim.Adam([w]).step()
    assert w < 1


def test_auto_is_a_gpu_that_is_there(environment):
    environment.setattr(CUDAAccelerator, "is_available", lambda: True)
    assert launch._accelerator("auto") == "cuda"


@pytest.mark.parametrize("named", ["mps", "gpu", "tpu"])
def test_an_accelerator_without_float64_is_refused(named, monkeypatch, refused):
    monkeypatch.setattr(MPSAccelerator, "is_available", lambda: True)
    said = refused("--accelerator", named)
    assert f"not on {named}: add --accelerator cpu" in said


RECIPE = """
import os, signal, time
from jobs import digits
from fl_lightning.experiment import Experiment
from fl_lightning.models import mlp

class Ends:
    def on_round_end(self, federation):
        if federation.fabric.global_rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(600)

if __name__ == "__main__":
    small = dict(clients=6, participation=0.5, batch_size=64, callbacks=[Ends()])
    argv = "--accelerator cpu --devices 2 --run-dir run --rounds 1".split()
    Experiment([digits], [mlp], argv=argv, **small).run()
"""


def test_a_rank_that_is_killed_is_named_and_ends_the_run(tmp_path, monkeypatch):
    """Lightning's launcher sees it, also while the first rank is busy."""
    monkeypatch.chdir(tmp_path)
    Path("recipe.py").write_text(RECIPE)
    jobs.digits()  # imported here, the forked processes have it already
    assert jobs.end([jobs.start(Path("run"), {}, jobs.program, "recipe.py")]) == [-9]
    said = jobs.said(Path("run"))
    assert "2 ranks of " in said
    assert "[rank: 1] " in said
    assert "Traceback" not in said


def test_a_further_launch_of_other_ranks_is_refused(environment):
    environment.setattr(launch, "_asked", [("2", 1)])
    with pytest.raises(UserError, match="devices=2 and num_nodes=1"):
        launch_same_ranks(LaunchOptions(accelerator="cpu"))
    environment.setattr(launch, "_asked", [("1", 1)])
    assert launch_same_ranks(LaunchOptions(accelerator="cpu")).world_size == 1
