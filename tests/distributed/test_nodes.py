"""Ranks on several machines: launchers that share only the run's folder, or not even that."""

import runpy
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import jobs
import pytest
import torch
from lightning.fabric import Fabric
from lightning.fabric.plugins.environments.lightning import find_free_network_port
from locations import ROOT
from problems import on_two_ranks

from fl_lightning.distributed.collectives import check_shared_folder
from fl_lightning.federation import local_training
from fl_lightning.runs import folder as run_folder

RECIPE = str(ROOT / "recipes/digits.py")
OPTIONS = "--algorithm scaffold --clients 8 --participation 0.6 --rounds 3 --deterministic"
"""A client's rows are written on one machine and read on the other."""


def run_recipe(*argv: str) -> None:
    sys.argv = [RECIPE, *OPTIONS.split(), *argv]
    runpy.run_path(RECIPE, run_name="__main__")


@pytest.fixture(scope="module")
def one_rank(tmp_path_factory):
    folder = tmp_path_factory.mktemp("one") / "run"
    jobs.digits()  # imported here, the forked processes have it already
    process = jobs.start(folder, {}, run_recipe, "--run-dir", str(folder), "--accelerator", "cpu")
    assert jobs.end([process]) == [0], jobs.said(folder)
    return jobs.results(folder)


def of_slurm(node: int) -> dict[str, object]:
    """Variables that `srun` sets for each task."""
    numbers = {"NTASKS": 2, "NTASKS_PER_NODE": 1, "NNODES": 2, "PROCID": node, "NODEID": node}
    names = {"JOB_ID": "1", "STEP_ID": "0", "JOB_NAME": "digits", "NODELIST": "127.0.0.1"}
    return {f"SLURM_{name}": v for name, v in {**numbers, "LOCALID": 0, **names}.items()}


def of_torchrun(node: int) -> dict[str, object]:
    """Variables that the agent of a machine with one worker sets."""
    world = {"WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 1, "GROUP_WORLD_SIZE": 2, "GROUP_RANK": node}
    return {"RANK": node, "LOCAL_RANK": 0, **world, "TORCHELASTIC_RUN_ID": "x"}


def of_fabric_run(node: int) -> dict[str, object]:
    """It is a torchrun that has Fabric's options itself."""
    options = {"ACCELERATOR": "cpu", "DEVICES": 1, "NUM_NODES": 2, "CLI_USED": 1}
    return {**of_torchrun(node), **{f"LT_{name}": value for name, value in options.items()}}


@pytest.mark.parametrize("variables", [of_fabric_run, of_torchrun, of_slurm])
def test_two_machines_train_what_one_rank_trains_to_the_last_bit(variables, one_rank, tmp_path):
    folder, port = tmp_path / "run", find_free_network_port()
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "GLOO_SOCKET_IFNAME": "lo"}
    own = () if variables is of_fabric_run else ("--accelerator", "cpu", "--num-nodes", "2")
    argv = run_recipe, "--run-dir", str(folder), *own
    nodes = [jobs.start(folder, {**address, **variables(k)}, *argv) for k in range(2)]
    assert jobs.end(nodes, 120) == [0, 0], jobs.said(folder)
    assert "2 ranks of " in jobs.said(folder)
    assert jobs.results(folder) == one_rank


def is_not_there(*_):
    raise FileNotFoundError


def elsewhere(check: Callable[..., None], fabric: Fabric, folder: Path) -> None:
    check(fabric, folder.with_name("elsewhere"))


def test_a_machine_with_another_folder_is_refused_once(tmp_path):
    without_lock = jobs.at_call(1, run_folder, "share_lock", is_not_there, rank=1)
    with_another = jobs.at_call(1, local_training, "check_shared_folder", elsewhere, rank=1)
    folder = tmp_path / "run"
    said = jobs.run(folder, [2, 2], prepare=lambda rank: (without_lock(rank), with_another(rank)))
    assert said.count("error: ") == 1
    assert "rank 1 does not see what rank 0 wrote in " in said


def checked(fabric: Fabric, folder: Path) -> str:
    """The outcome on a rank, in the folder of its number."""
    before, outcome = torch.get_rng_state(), "shared"
    try:
        check_shared_folder(fabric, folder / str(fabric.global_rank))
    except (OSError, ValueError, SystemExit) as error:
        outcome = str(error)
    assert torch.get_rng_state().equal(before)
    return outcome


def test_ranks_without_a_shared_folder_are_refused(tmp_path):
    """A file of an earlier run, which did share its folder, does not count."""
    (tmp_path / "0").mkdir()
    (tmp_path / "1").symlink_to(tmp_path / "0")
    check = partial(checked, folder=tmp_path)
    assert on_two_ranks(check) == ("shared", "shared")
    (tmp_path / "1").unlink()
    (tmp_path / "1").mkdir()
    (tmp_path / "1/.shared").write_bytes((tmp_path / "0/.shared").read_bytes())
    for rank, said in enumerate(on_two_ranks(check)):
        assert f"rank 1 does not see what rank 0 wrote in {tmp_path / str(rank)}: " in said


def test_no_rank_waits_for_one_that_cannot_write(tmp_path):
    (tmp_path / "0").write_text("a file, where the folder should be")
    first, second = on_two_ranks(partial(checked, folder=tmp_path))
    assert "File exists" in first
    assert second == "2"
