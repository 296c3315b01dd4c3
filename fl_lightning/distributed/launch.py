"""Launch of a run's ranks by Fabric, and what holds for their processes: threads, equal bits."""

import atexit
import ctypes
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from threading import RLock
from typing import Any

import torch
import torch.utils.deterministic
from lightning.fabric import Fabric
from lightning.fabric.accelerators.cuda import CUDAAccelerator
from lightning.fabric.accelerators.mps import MPSAccelerator
from lightning.fabric.plugins.environments.lsf import LSFEnvironment
from lightning.fabric.plugins.environments.mpi import MPIEnvironment
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.fabric.utilities.imports import _IS_INTERACTIVE
from torch.backends import cudnn

from fl_lightning.distributed.launch_options import LaunchOptions, under_fabric_run
from fl_lightning.distributed.signals import FIRST_RANK, ctrl_c_kills
from fl_lightning.errors import UserError

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # M_* of glibc's malloc.h

_asked = list[tuple[str, int]]()
"""The devices and machines that `launch_same_ranks` was asked for."""


def launch_fabric(launch: LaunchOptions, **fabric_options: Any) -> Fabric:
    """Start the ranks, as Fabric does, with an equal part of the cores as threads.

    Args:
        launch: Options, for Fabric where `fabric run` has not given it its own.
        **fabric_options: Further options of Fabric.

    Raises:
        UserError: If Fabric refuses the options.
    """
    keep_freed_memory()
    if not torch.cuda.is_available():
        # each step of Adam asks this; by Lightning's 1 it looks for NVIDIA's library each time
        os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "0"
    by_cli = under_fabric_run()  # which gives Fabric its options by the environment
    named = os.environ.get("LT_ACCELERATOR", "auto") if by_cli else launch.accelerator
    accelerator, ranks = _accelerator(named), _launched_ranks(launch.num_nodes)
    if by_cli:
        os.environ["LT_ACCELERATOR"] = accelerator
    else:
        devices = str(ranks) if ranks and launch.devices == "1" else launch.devices  # 1: default
        if ranks and devices.isdigit() and int(devices) != ranks:  # Fabric ignores it in SLURM
            raise UserError(
                f"devices is {devices}, but the launcher has started {ranks} here: let it start as "
                f"many, as srun --ntasks-per-node {devices} does, or leave devices out"
            )
        fabric_options |= {**asdict(launch), "accelerator": accelerator, "devices": devices}
    # `fabric run` sets OMP_NUM_THREADS to all cores, for any number of ranks
    threads_named, most = "OMP_NUM_THREADS" in os.environ and not by_cli, torch.get_num_threads()
    launches = not ranks and FIRST_RANK not in os.environ
    if launches:
        os.environ[FIRST_RANK] = str(os.getpid())  # for the ranks that it launches
        if launch.num_nodes > 1:
            print(
                f"waiting for {launch.num_nodes} machines: start this program on each, MASTER_ADDR "
                "names the first, NODE_RANK this one (docs/guides/ranks.md)",
                flush=True,
            )
    try:
        with ctrl_c_kills():
            fabric = Fabric(**fabric_options)
            if not by_cli:
                if fabric.world_size > 1 and _IS_INTERACTIVE:  # no script that ranks could run
                    raise UserError(
                        "a notebook or a prompt trains on one rank: give --devices 1, or run a "
                        "script"
                    )
                fabric.launch()
    except (TypeError, ValueError, RuntimeError, MisconfigurationException) as error:
        raise UserError(" ".join(str(error).split())) from None
    finally:
        if launches:
            del os.environ[FIRST_RANK]
    atexit.register(_destroy_gloo_group)
    if not threads_named:
        sharing = _ranks_on_these_cores() or ranks or fabric.world_size // launch.num_nodes
        torch.set_num_threads(min(most, max(1, available_cores() // sharing)))
    return fabric


def launch_same_ranks(launch: LaunchOptions, **fabric_options: Any) -> Fabric:
    """Launch as `launch_fabric` in a program that may do so several times.

    Raises:
        UserError: If the first time was of another number of ranks: a further rank would run the
            program from its top, with what it did before.
    """
    _asked.append((launch.devices, launch.num_nodes))
    if (first := _asked[0]) != _asked[-1]:
        raise UserError(
            f"the first fit of a program decides the number of ranks: give devices={first[0]} "
            f"and num_nodes={first[1]} as there, or fit in another program"
        )
    return launch_fabric(launch, **fabric_options)


def keep_freed_memory() -> None:
    """Let malloc keep large freed blocks for this process.

    By default glibc maps large blocks anew and returns free memory to the system, so that a step on
    the CPU spends much of its time in page faults: LeNet's took 1.3 times as long. With these
    settings the process does not shrink. Other C libraries than glibc do not know them.
    """
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_MMAP_THRESHOLD, 2**30)
        mallopt(_TRIM_THRESHOLD, 2**31 - 1)


def available_cores() -> int:
    """Processors that this process may run on (`os.process_cpu_count` of Python 3.13)."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _ranks_on_these_cores() -> int:
    """Ranks that may run on the same processors as this one; 0 without other ranks.

    A launcher such as srun may give each rank processors of its own.
    """
    if not torch.distributed.is_initialized():
        return 0
    mine = platform.node(), sorted(getattr(os, "sched_getaffinity", lambda _: ())(0))
    every = [mine] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(every, mine)
    return every.count(mine)


def _launched_ranks(num_nodes: int) -> int | None:
    """Ranks on this machine that a launcher has started; None if this program is to start them."""
    if TorchElasticEnvironment.detect():  # torchrun or fabric run
        return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    for environment in (SLURMEnvironment, LSFEnvironment, MPIEnvironment):
        if environment.detect():
            # a batch script without srun is one rank, and Fabric does not wait for SLURM_NTASKS
            alone = environment is SLURMEnvironment and "SLURM_STEP_ID" not in os.environ
            return 1 if alone else environment().world_size() // num_nodes
    return None


def _destroy_gloo_group() -> None:
    """End gloo's threads before Python does; Lightning destroys only NCCL's groups.

    A thread that still holds a tensor takes Python's lock to free it, which aborts the process
    while the interpreter ends (https://github.com/pytorch/pytorch/pull/179291).
    """
    if torch.distributed.is_initialized() and torch.distributed.get_backend() == "gloo":
        torch.distributed.destroy_process_group()


def _accelerator(named: str) -> str:
    """Resolve auto: Fabric would take a Mac's GPU, which lacks the float64 that scores need."""
    if named == "auto":
        return "cuda" if CUDAAccelerator.is_available() else "cpu"
    if named in ("mps", "tpu") or (named == "gpu" and MPSAccelerator.is_available()):
        raise UserError(
            f"clients train on processor cores or CUDA GPUs, not on {named}: add --accelerator cpu"
        )
    return named


_fitting = RLock()


@contextmanager
def deterministic_algorithms(wanted: bool = True) -> Iterator[None]:
    """If wanted, let PyTorch choose deterministic algorithms; an operation without one raises.

    Enter it before the first use of a GPU, whose matrix products read their switch then.
    """
    if not wanted:
        yield
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    memory: Any = torch.utils.deterministic
    switches = (memory, "fill_uninitialized_memory"), (cudnn, "deterministic"), (cudnn, "benchmark")
    before = [getattr(*switch) for switch in switches]
    algorithms = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    memory.fill_uninitialized_memory = False  # costs a pass over memory that is written anyway
    cudnn.deterministic, cudnn.benchmark = True, False
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(algorithms)
        for switch, value in zip(switches, before, strict=True):
            setattr(*switch, value)


@contextmanager
def in_one_thread() -> Iterator[None]:
    """Refuse a fit while another thread fits: they would draw each other's dropout."""
    if not _fitting.acquire(blocking=False):
        raise UserError("another thread is fitting: fit one after another, or in other processes")
    try:
        yield
    finally:
        _fitting.release()
