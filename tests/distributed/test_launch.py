"""The number of ranks and threads: the default, and that of a user or a launcher."""

import os
import subprocess
import sys
import types
from dataclasses import replace
from typing import Any

import jobs
import pytest
import torch
from lightning.fabric.accelerators.cuda import CUDAAccelerator
from lightning.fabric.accelerators.mps import MPSAccelerator
from locations import ROOT
from refusals import experiment

from fl_lightning import experiment as experiments
from fl_lightning.distributed import launch
from fl_lightning.distributed.launch import Launcher, LaunchOptions, launch_fabric
from fl_lightning.distributed.resources import Machine

GIB = 1024**3

WORLD = {"WORLD_SIZE": "6", "LOCAL_WORLD_SIZE": "3"}
TORCHRUN = {"LOCAL_RANK": "1", **WORLD, "TORCHELASTIC_RUN_ID": "x"}
SBATCH = {"SLURM_NTASKS": "8", "SLURM_NNODES": "2", "SLURM_JOB_NAME": "mine"}
SLURM = {**SBATCH, "SLURM_STEP_ID": "0"}
LIGHTNING = {"LOCAL_RANK": "1", "WORLD_SIZE": "4"}


@pytest.fixture
def environment(monkeypatch):
    """Without variables of launchers and of the program that runs the tests."""
    others = "OMP_NUM_THREADS", "LT_CLI_USED", "SLURM_CPUS_PER_TASK"
    for name in (*others, *TORCHRUN, *SLURM):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


@pytest.fixture
def launched(environment):
    """Devices and threads of a launch, by default of 10 clients on 8 cores with 64 GiB."""
    options: dict[str, Any] = {}
    threads: list[int] = []

    def fabric(**given):
        options.update(given)
        ranks = int(given["devices"]) if given["devices"].isdigit() else 2
        return types.SimpleNamespace(launch=lambda: None, world_size=ranks * given["num_nodes"])

    environment.setattr(launch, "Fabric", fabric)
    environment.setattr(torch, "get_num_threads", lambda: 64)
    environment.setattr(torch, "set_num_threads", threads.append)

    def launched(
        clients: int = 10,
        cores: int = 8,
        memory: int = 64 * GIB,
        threads_named: int | None = None,
        launcher: Launcher | None = None,
        restartable: bool = True,
        before: tuple[int, int] | None = None,
        **given: Any,
    ) -> tuple[str, int | None]:
        machine = Machine(cores, memory, threads_named)
        environment.setattr(Machine, "here", lambda: machine)
        environment.setattr(Launcher, "detect", lambda _: launcher)
        environment.setattr(launch, "_restartable", lambda: restartable)
        launch_fabric(LaunchOptions(**{"accelerator": "cpu", **given}), clients, before)
        return options["devices"], threads[-1] if threads else None

    return launched


GPU = {"accelerator": "cuda"}


@pytest.mark.parametrize(
    ("given", "devices", "threads"),
    [
        ({}, "8", 1),
        ({"clients": 3}, "3", 2),
        ({"cores": 16}, "10", 1),
        ({"memory": 16 * GIB}, "5", 1),
        ({"memory": GIB}, "1", 8),
        ({"threads_named": 2}, "4", None),
        ({"threads_named": 16}, "1", None),
        ({"restartable": False}, "1", 8),
        (GPU, "1", None),
        ({"devices": "4"}, "4", 2),
        ({"devices": "9"}, "9", 1),
        ({"devices": "4", "threads_named": 1}, "4", None),
        ({"devices": "0,2", **GPU}, "0,2", None),
        ({"launcher": Launcher(4)}, "4", 2),
        ({"launcher": Launcher(4, cores=8)}, "4", 8),
        ({"launcher": Launcher(4, cores=64)}, "4", 8),
        ({"launcher": Launcher(4), **GPU}, "4", None),
        ({"before": (2, 3), "memory": GIB}, "2", 3),
        ({"before": (3, 3)}, "8", 1),
        ({"before": (4, 3), "threads_named": 2}, "4", None),
        ({"before": (5, 1), "threads_named": 2}, "4", None),
        ({"before": (2, 3), "devices": "4"}, "4", 2),
        ({"before": (2, 3), "launcher": Launcher(4)}, "4", 2),
        ({"before": (4, 1), "launcher": Launcher(4)}, "4", 1),
        ({"before": (2, 3), "restartable": False}, "1", 8),
        ({"before": (2, 3), **GPU}, "1", None),
    ],
    ids=str,
)
def test_ranks_and_threads(given, devices, threads, launched):
    assert launched(**given) == (devices, threads)


def test_threads_are_only_ever_lowered(launched, environment):
    """A program that has set fewer keeps them."""
    environment.setattr(torch, "get_num_threads", lambda: 1)
    assert launched(devices="1") == ("1", 1)


def test_a_program_that_starts_on_several_machines_says_what_it_waits_for(launched, capsys):
    assert launched(num_nodes=2)[0] == "1"
    assert "waiting for 2 machines" in capsys.readouterr().out
    launched(num_nodes=2, launcher=Launcher(1))
    launched()
    assert not capsys.readouterr().out


LAUNCHERS = {
    "none": ({}, None),
    "torchrun": (TORCHRUN, Launcher(3)),
    "fabric run": ({**TORCHRUN, "LT_CLI_USED": "1", "LOCAL_WORLD_SIZE": "2"}, Launcher(2)),
    "SLURM": (SLURM, Launcher(4, 2)),
    "SLURM with cores": ({**SLURM, "SLURM_CPUS_PER_TASK": "6"}, Launcher(4, 6)),
    "SLURM without room for as many": ({**SLURM, "SLURM_NTASKS": "10"}, Launcher(5)),
    "no srun": (SBATCH, Launcher(1, 2)),
    "SLURM's shell": ({**SLURM, "SLURM_JOB_NAME": "bash"}, None),
    "Lightning": (LIGHTNING, Launcher(2)),
}


@pytest.mark.parametrize(("variables", "launcher"), LAUNCHERS.values(), ids=LAUNCHERS)
def test_a_launcher_is_detected_by_its_variables(variables, launcher, environment):
    """This process sees two of the machine's eight cores."""
    environment.setattr(launch, "affinity", lambda: {0, 1})
    environment.setattr(launch, "physical", len)
    environment.setattr(os, "cpu_count", lambda: 8)
    for name, value in variables.items():
        environment.setenv(name, value)
    assert Launcher.detect(num_nodes=2) == launcher


@pytest.mark.parametrize("devices", ["0", "many", "", "-3", "1.5", "auto,1"])
def test_devices_are_auto_or_a_number_or_a_list(devices):
    """For Fabric `0,` is the first GPU, and -1 all of them."""
    for possible in ("auto", "3", "-1", "0,", "0,2"):
        assert LaunchOptions(devices=possible).devices == possible
    with pytest.raises(ValueError, match=f"devices is auto.* not '{devices}'"):
        LaunchOptions(devices=devices)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_refused(refused):
    assert "CUDAAccelerator" in refused("--accelerator", "cuda", "--devices", "auto")


def test_a_command_line_from_within_a_program_starts_no_ranks(tmp_path, capsys):
    """They would run that program too."""
    experiment(tmp_path / "run").run()
    assert "1 rank(s) on cpu" in capsys.readouterr().out


def test_only_the_program_that_lightning_would_start_again_starts_ranks(environment):
    program = types.SimpleNamespace(__file__=str(ROOT / "recipes/cifar10.py"))
    environment.setitem(sys.modules, "__main__", program)
    environment.chdir(ROOT)
    environment.setattr(sys, "argv", ["recipes/cifar10.py", "--rounds", "2"])
    assert launch._restartable()
    program.__file__ = pytest.__file__
    assert not launch._restartable(), "pytest runs the recipe"
    del program.__file__
    assert not launch._restartable(), "a notebook"


@pytest.mark.parametrize(
    ("options", "visits"), [((), 3), (("--executor", "stacked", "--parallel-clients", "2"), 1)]
)
def test_stacked_clients_are_counted_in_full_groups(options, visits, tmp_path, monkeypatch):
    counted: list[int] = []
    monkeypatch.setattr(
        experiments, "launch_fabric", lambda launch, clients, *_, **__: counted.append(clients)
    )
    experiment(tmp_path / "run", *options).fabric([], [])
    assert counted == [visits]


@pytest.mark.parametrize("named", [None, "", "auto", "cpu"], ids=["python", "none", "auto", "cpu"])
def test_auto_is_the_cpu_of_a_mac(named, environment):
    """Also where `fabric run` names it by LT_ACCELERATOR."""
    environment.setattr(CUDAAccelerator, "is_available", lambda: False)
    environment.setattr(MPSAccelerator, "is_available", lambda: True)
    environment.delenv("LT_ACCELERATOR", raising=False)
    if named:
        environment.setenv("LT_ACCELERATOR", named)
    if named is not None:
        environment.setenv("LT_CLI_USED", "1")
    assert launch_fabric(LaunchOptions(), 1).device.type == "cpu"


def test_auto_is_a_gpu_that_is_there(environment):
    environment.setattr(CUDAAccelerator, "is_available", lambda: True)
    assert launch._accelerator("auto") == "cuda"


@pytest.mark.parametrize("named", ["mps", "gpu", "tpu"])
def test_an_accelerator_without_float64_is_refused(named, monkeypatch, refused):
    monkeypatch.setattr(MPSAccelerator, "is_available", lambda: True)
    said = refused("--accelerator", named)
    assert f"not on {named}: add --accelerator cpu" in said


@pytest.mark.parametrize("error", [OSError, UnicodeError])
def test_an_address_that_cannot_be_resolved_is_refused(error, refused, environment):
    """Before ranks are started; not for one rank, which needs none."""

    def unknown(*_: Any) -> None:
        raise error("Name or service not known")

    environment.setattr(launch.socket, "getaddrinfo", unknown)
    environment.setenv("MASTER_ADDR", "nowhere.invalid")
    said = refused("--devices", "2", "--strategy", "ddp")
    assert "MASTER_ADDR 'nowhere.invalid'" in said
    assert launch_fabric(LaunchOptions(accelerator="cpu", devices="1"), 1).world_size == 1


RECIPE = """
import atexit
from pathlib import Path
import torch
from jobs import digits
from fl_lightning.experiment import Experiment
from fl_lightning.models import mlp

class Breaks:
    def on_round_end(self):
        raise ValueError(f"it broke with {torch.get_num_threads()} thread(s)")

def print_threads():
    names = [file.read_text().strip() for file in Path("/proc/self/task").glob("*/comm")]
    left = [name for name in names if "gloo_runloop" in name]
    print(f"left: {left}")  # in one piece

if __name__ == "__main__":
    atexit.register(print_threads)
    small = dict(clients=6, participation=0.5, batch_size=64, callbacks=[Breaks()])
    Experiment([digits], [mlp], **small).run()
"""


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_recipe_starts_ranks_that_fail_and_is_resumed_with_another_number(
    tmp_path, capsys, monkeypatch
):
    """As many as three clients and the machine allow, then one."""
    here = replace(Machine.here(), threads=None)
    started = here.ranks(clients=3)
    if started == 1:
        pytest.skip("this machine has room for one rank")
    (tmp_path / "recipe.py").write_text(RECIPE)
    others = {*LIGHTNING, "MASTER_ADDR", "MASTER_PORT", "NODE_RANK", "OMP_NUM_THREADS"}
    variables = {k: v for k, v in os.environ.items() if k not in others}
    variables["PYTHONPATH"] = f"{ROOT}:{ROOT}/tests/helpers"
    command = f"{sys.executable} recipe.py --accelerator cpu --run-dir run --rounds 1".split()
    done = subprocess.run(
        command, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=120
    )
    threads = here.cores // started
    assert f"{started} rank(s) on cpu, {threads} thread(s) each" in done.stdout
    assert done.returncode == 2
    assert done.stdout.count("left: []") == started  # such a thread could abort the exit
    assert f"error: ValueError: it broke with {threads} thread(s) (recipe.py" in done.stderr
    assert "Traceback" not in done.stderr
    before: list[Any] = []
    launch_fabric = experiments.launch_fabric

    def launched(*args, **options):
        before.append(args[2])
        return launch_fabric(*args, **options)

    monkeypatch.setattr(experiments, "launch_fabric", launched)
    experiment(tmp_path / "run", "--resume").run()
    assert before == [(started, threads)]
    assert "1 rank(s) on cpu" in capsys.readouterr().out
    assert [row["round"] for row in jobs.results(tmp_path / "run")["metrics"]] == ["1"]
