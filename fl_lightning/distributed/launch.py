"""Launch of a run's ranks: how many there are on this machine, and the threads of each."""

import atexit
import os
import re
import socket
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from lightning.fabric import Fabric
from lightning.fabric.accelerators.cuda import CUDAAccelerator
from lightning.fabric.accelerators.mps import MPSAccelerator
from lightning.fabric.plugins.environments.lsf import LSFEnvironment
from lightning.fabric.plugins.environments.mpi import MPIEnvironment
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment

from fl_lightning.core.constraints import PositiveInt, check
from fl_lightning.distributed.launcher_env import is_first_rank, under_fabric_run
from fl_lightning.distributed.resources import Machine, affinity, physical
from fl_lightning.distributed.signals import FIRST_RANK, ctrl_c_kills


@dataclass(frozen=True)
class PrecisionOption:
    """The one of Fabric's options that belongs to a run's results.

    Attributes:
        precision: Number type of the models' arithmetic; weights and duals stay in 32 bits.
    """

    precision: Literal["32-true", "bf16-mixed"] = "32-true"


@dataclass(frozen=True)
class LaunchOptions(PrecisionOption):
    """Fabric's options for `python recipe.py`; `fabric run` takes them itself.

    Attributes:
        accelerator: The hardware: cpu, cuda, or auto, which is CUDA where there is a GPU for it,
            else the CPU.
        devices: The number of ranks, or which GPUs, or auto: as many as a launcher such as torchrun
            has started; else one GPU; else on --resume as many CPU ranks as before; else one a CPU
            core, but no more than clients in a round (stacks of them with --executor stacked), and
            3 GiB of free memory for each. CPU ranks share the cores as threads, unless
            OMP_NUM_THREADS is set.
        num_nodes: The number of machines that this program is started on (see
            docs/guides/ranks.md).
        strategy: How ranks communicate, e.g. auto or ddp.
        precision: Number type of the models' arithmetic; weights and duals stay in 32 bits.
    """

    accelerator: str = "auto"
    devices: str = "auto"
    num_nodes: PositiveInt = 1
    strategy: str = "auto"

    def __post_init__(self) -> None:
        check(self)
        if not re.fullmatch(r"auto|-1|0*[1-9]\d*|\d+(,\d+)*,|\d+(,\d+)+", self.devices):
            raise ValueError(
                "devices is auto, or a number of ranks of at least 1, or which GPUs, e.g. 0,2, "
                f"not {self.devices!r}"
            )


@dataclass(frozen=True)
class Launcher:
    """The program that started this process as one of several ranks.

    Attributes:
        ranks: Ranks that it started on this machine.
        cores: Cores that it reserved for each of them; None if all share this process's cores.
    """

    ranks: int
    cores: int | None = None

    @classmethod
    def detect(cls, num_nodes: int) -> "Launcher | None":
        """The launcher of this process; None if this program starts the other ranks itself."""
        e = os.environ
        if TorchElasticEnvironment.detect():  # torchrun or fabric run
            return cls(int(e.get("LOCAL_WORLD_SIZE", "1")))
        if SLURMEnvironment.detect():
            # a batch script without srun is one rank, and Fabric does not wait for SLURM_NTASKS
            tasks = int(e["SLURM_NTASKS"]) // int(e.get("SLURM_NNODES", "1"))
            ranks = tasks if "SLURM_STEP_ID" in e else 1
            return cls(ranks, int(e.get("SLURM_CPUS_PER_TASK", "0")) or _bound_cores(ranks))
        for other in (LSFEnvironment, MPIEnvironment):
            if other.detect():
                ranks = other().world_size() // num_nodes
                return cls(ranks, _bound_cores(ranks))
        if "LOCAL_RANK" in e:  # Lightning launched it from the first rank
            return cls(int(e.get("WORLD_SIZE", "1")) // num_nodes)
        return None


def _bound_cores(ranks: int) -> int | None:
    """Cores that this process is bound to, if the machine has as many for each of the ranks."""
    cores = physical(affinity())
    return cores if cores * ranks <= physical(range(os.cpu_count() or 1)) else None


def launch_fabric(
    launch: LaunchOptions,
    clients_per_round: int,
    before: tuple[int, int] | None = None,
    **fabric_options: Any,
) -> Fabric:
    """Start the ranks with their threads.

    Args:
        launch: Options, for Fabric where `fabric run` has not given it its own.
        clients_per_round: The largest number of ranks that have work.
        before: CPU ranks, and threads of each, that a resumed run had: the last bits of its numbers
            depend on both. Ignored if this machine has too few cores.
        **fabric_options: Further options of Fabric.
    """
    by_cli = under_fabric_run()  # which gives Fabric its options by the environment
    named = os.environ.get("LT_ACCELERATOR", "auto") if by_cli else launch.accelerator
    accelerator = _accelerator(named)
    machine, launcher = Machine.here(), Launcher.detect(launch.num_nodes)
    cpu = accelerator == "cpu"
    if before and (not cpu or before[0] * (machine.threads or before[1]) > machine.cores):
        before = None
    devices = launch.devices
    if devices == "auto":
        if launcher:
            ranks = launcher.ranks
        elif not cpu or launch.num_nodes > 1 or not _restartable():
            ranks = 1  # each of several machines would count its own cores
        else:
            ranks = before[0] if before else machine.ranks(clients_per_round)
        devices = str(ranks)
    if by_cli:
        os.environ["LT_ACCELERATOR"] = accelerator
    else:
        fabric_options |= {**asdict(launch), "accelerator": accelerator, "devices": devices}
    if not launcher:
        os.environ[FIRST_RANK] = str(os.getpid())
        if launch.num_nodes > 1 and is_first_rank():
            print(
                f"waiting for {launch.num_nodes} machines: start this program on each, MASTER_ADDR "
                "names the first, NODE_RANK this one (docs/guides/ranks.md)",
                flush=True,
            )
    most = torch.get_num_threads()  # the program may want fewer than Fabric sets
    with ctrl_c_kills():
        fabric = Fabric(**fabric_options)
        if not by_cli:
            if fabric.world_size > 1:
                _check_main_address()
            fabric.launch()
    atexit.register(_destroy_gloo_group)
    if not launcher:
        del os.environ[FIRST_RANK]
    if cpu and not machine.threads:
        ranks = launcher.ranks if launcher else fabric.world_size // launch.num_nodes
        threads = _threads(ranks, machine, launcher, before)
        torch.set_num_threads(min(threads, most))
    return fabric


def _destroy_gloo_group() -> None:
    """End gloo's threads before Python does; Lightning destroys only NCCL's groups.

    A thread that still holds a tensor takes Python's lock to free it, which aborts the process
    while the interpreter ends (https://github.com/pytorch/pytorch/pull/179291).
    """
    if torch.distributed.is_initialized() and torch.distributed.get_backend() == "gloo":
        torch.distributed.destroy_process_group()


def _check_main_address() -> None:
    """Refuse an unknown address, for which the ranks would wait for half an hour."""
    address = os.environ.get("MASTER_ADDR", "127.0.0.1")
    try:
        socket.getaddrinfo(address, None)
    except (OSError, UnicodeError) as error:
        raise ValueError(
            f"MASTER_ADDR {address!r} is no address that this machine knows ({error}): "
            "give the name or IP address of the first machine"
        ) from None


def _threads(
    ranks: int, machine: Machine, launcher: Launcher | None, before: tuple[int, int] | None
) -> int:
    if before and before[0] == ranks:
        return before[1]
    if launcher and launcher.cores:
        return min(launcher.cores, machine.cores)
    return max(1, machine.cores // ranks)


def _accelerator(named: str) -> str:
    """Resolve auto: Fabric would take a Mac's GPU, which lacks the float64 that scores need."""
    if named == "auto":
        return "cuda" if CUDAAccelerator.is_available() else "cpu"
    if named in ("mps", "tpu") or (named == "gpu" and MPSAccelerator.is_available()):
        raise ValueError(
            f"clients train on processor cores or CUDA GPUs, not on {named}: add --accelerator cpu"
        )
    return named


def _restartable() -> bool:
    """Whether Lightning would start this very program again: not a notebook or another program."""
    program = getattr(sys.modules["__main__"], "__file__", None) or os.devnull
    return not hasattr(sys, "ps1") and Path(program).resolve() == Path(sys.argv[0]).resolve()
