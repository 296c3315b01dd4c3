"""How many ranks train a run on this machine, who starts them, and how many threads each of them has."""

import os
import re
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


@dataclass(frozen=True)
class Arithmetic:
    """The one of Fabric's own options that belongs to a run's results.

    Attributes:
        precision: Number type of the models' arithmetic; weights and duals stay in 32 bits.
    """

    precision: Literal["32-true", "bf16-mixed"] = "32-true"


@dataclass(frozen=True)
class Launch(Arithmetic):
    """Fabric's own options, for `python recipe.py`; `fabric run` takes them itself.

    Attributes:
        accelerator: Which hardware: cpu, cuda, or auto, which is CUDA where there is a GPU for it,
            else the CPU.
        devices: How many ranks, or which GPUs, or auto: as many as a launcher such as torchrun has
            started; else one GPU, or on a CPU a rank a core, but no more than clients in a round
            (stacks of them with --executor stacked), and 3 GiB of free memory for each; or on
            --resume as many as before. Ranks on a CPU share its cores as threads, unless
            OMP_NUM_THREADS says how many each has.
        num_nodes: On how many machines this program is started (see "Several machines" in the
            README).
        strategy: How ranks talk, e.g. auto or ddp.
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
                f"devices is auto, or a number of ranks of at least 1, or which GPUs, e.g. 0,2, not {self.devices!r}"
            )


@dataclass(frozen=True)
class Launcher:
    """Who has started this process as one of the run's ranks, and so decided how many there are.

    Attributes:
        ranks: How many it has started on this machine.
        flags: The flag that sets the number of ranks, {} standing for it; empty where no user gives
            one.
        cores: Cores that it has given this rank alone; None where it has said so neither in words
            nor by affinity.
        binds: Whether it may have bound ranks to cores, so that this process sees only its own.
    """

    ranks: int
    flags: str = ""
    cores: int | None = None
    binds: bool = False

    @classmethod
    def of_this_process(cls, num_nodes: int) -> "Launcher | None":
        """That of this process; None if this program is to start the other ranks itself."""
        e = os.environ
        if under_fabric_run():
            return cls(int(e.get("LOCAL_WORLD_SIZE", "1")), "--devices {} to fabric run")
        if TorchElasticEnvironment.detect():
            return cls(int(e.get("LOCAL_WORLD_SIZE", "1")), "--nproc-per-node {} to torchrun")
        if SLURMEnvironment.detect():
            # a batch script without srun is one rank, and Fabric then refuses to wait for SLURM_NTASKS
            ranks = (
                int(e["SLURM_NTASKS"]) // int(e.get("SLURM_NNODES", "1"))
                if "SLURM_STEP_ID" in e
                else 1
            )
            cores = int(e.get("SLURM_CPUS_PER_TASK", "0")) or _bound(ranks)
            return cls(ranks, "--ntasks-per-node {} --cpus-per-task 1 to srun", cores, binds=True)
        for other in (LSFEnvironment, MPIEnvironment):
            if other.detect():
                ranks = other().world_size() // num_nodes
                return cls(ranks, cores=_bound(ranks), binds=True)
        if "LOCAL_RANK" in e:  # Lightning, from the first rank
            return cls(int(e.get("WORLD_SIZE", "1")) // num_nodes)
        return None


@dataclass(frozen=True)
class Plan:
    """The ranks of a run on this machine.

    Attributes:
        devices: What Fabric is told.
        ranks: How many train on processor cores; None for other devices.
        threads: Of each rank; None leaves them as they are.
        note: What the user should know; empty if nothing.
    """

    devices: str
    ranks: int | None = None
    threads: int | None = None
    note: str = ""

    @classmethod
    def make(
        cls,
        devices: str,
        cpu: bool,
        clients: int,
        machine: Machine,
        launcher: Launcher | None = None,
        alone: bool = False,
        small: bool = False,
        before: tuple[int, int] | None = None,
    ) -> "Plan":
        """Decide.

        Args:
            devices: What the user has named, or "auto".
            cpu: Whether processor cores train.
            clients: Clients in a round.
            machine: What there is.
            launcher: Who has decided already, if anyone.
            alone: Whether this program shall start no other ranks unless it is told how many.
            small: Whether a round is too short for several ranks, or threads, to pay.
            before: Ranks on processor cores, and threads of each, that a resumed run had. It gets
                as many if it may, since the last bits of its numbers depend on both.
        """
        auto, pays = devices == "auto", machine.ranks(clients) if cpu and not small else 1
        if before and (not cpu or before[0] * (machine.threads or before[1]) > machine.cores):
            before = None
        if auto:
            devices = str(_ranks(pays, launcher, alone, before))
        if not cpu or not devices.isdigit():
            return cls(devices)
        ranks = launcher.ranks if launcher else int(devices)
        threads = _threads(ranks, machine, launcher, small, before)
        return cls(devices, ranks, threads, _note(ranks, pays if auto else 1, machine, launcher))


def _ranks(
    pays: int, launcher: Launcher | None, alone: bool, before: tuple[int, int] | None
) -> int:
    """How many there are, where the user has not said it."""
    if launcher:
        return launcher.ranks
    if alone:
        return 1
    return before[0] if before else pays


def _threads(
    ranks: int,
    machine: Machine,
    launcher: Launcher | None,
    small: bool,
    before: tuple[int, int] | None,
) -> int | None:
    """How many each rank has; None where the user has said it."""
    if machine.threads:
        return None
    if before and before[0] == ranks:
        return before[1]
    if small:
        return 1
    if launcher and launcher.cores:
        return min(launcher.cores, machine.cores)
    return max(1, machine.cores // ranks)


def _note(ranks: int, pays: int, machine: Machine, launcher: Launcher | None) -> str:
    """What the user should know of this number of ranks, where another one may pay; empty if nothing."""
    if launcher and launcher.flags and ranks == 1 < pays:
        return f"note: {pays} ranks are usually faster than this one: add {launcher.flags.format(pays)}"
    if ranks > machine.cores and not (launcher and launcher.binds):
        return f"note: {ranks} ranks share {machine.cores} core(s), which is seldom faster than a rank a core"
    return ""


def launched(
    launch: Launch,
    clients: int,
    alone: bool = False,
    small: bool = False,
    before: tuple[int, int] | None = None,
    **options: Any,
) -> Fabric:
    """A Fabric whose ranks have been started, with the threads that they should have.

    Args:
        launch: The options, which count where Fabric has not been given its own by `fabric run`.
        clients: Clients in a round.
        alone: Whether "auto" shall start no other ranks, each of which is this program.
        small: Whether a round is too short for several ranks, or threads, to pay.
        before: Ranks and threads of each that a resumed run had, if known.
        **options: Of Fabric.

    Raises:
        TypeError, ValueError, RuntimeError, MisconfigurationException: If Fabric refuses its
            options.
    """
    launcher, machine = Launcher.of_this_process(launch.num_nodes), Machine.here()
    accelerator = _accelerator(
        os.environ.get("LT_ACCELERATOR", "auto") if under_fabric_run() else launch.accelerator
    )
    alone = (
        alone or launch.num_nodes > 1 or not _restartable()
    )  # each of several machines would count its own cores
    plan = Plan.make(
        launch.devices, accelerator == "cpu", clients, machine, launcher, alone, small, before
    )
    given = {**asdict(launch), "accelerator": accelerator, "devices": plan.devices}
    if under_fabric_run():  # it gives Fabric all of them by its environment
        given, os.environ["LT_ACCELERATOR"] = {}, accelerator
    fabric = Fabric(**given, **options)
    if launch.num_nodes > 1 and not launcher and is_first_rank():
        print(
            f"waiting for {launch.num_nodes} machines to start this program: MASTER_ADDR names the first, NODE_RANK "
            'this one; fabric run, torchrun and srun see to that by themselves ("Several machines" in the README)',
            flush=True,
        )
    if not under_fabric_run():
        fabric.launch()
    if plan.threads and (plan.ranks != 1 or plan.threads < torch.get_num_threads()):
        torch.set_num_threads(plan.threads)
    if plan.note:
        fabric.print(plan.note)
    return fabric


def _accelerator(named: str) -> str:
    """What Fabric is told: by itself it would take a Mac's GPU, which has no float64, and scores need it."""
    if named == "auto":
        return "cuda" if CUDAAccelerator.is_available() else "cpu"
    if named in ("mps", "tpu") or (named == "gpu" and MPSAccelerator.is_available()):
        raise ValueError(
            f"clients train on processor cores or CUDA GPUs, not on {named}: add --accelerator cpu"
        )
    return named


def _restartable() -> bool:
    """Whether Lightning would start this very program anew: it cannot in a notebook, or within another program."""
    program = getattr(sys.modules["__main__"], "__file__", None) or os.devnull
    return not hasattr(sys, "ps1") and Path(program).resolve() == Path(sys.argv[0]).resolve()


def _bound(ranks: int) -> int | None:
    """Cores that this process is bound to, if so many ranks, each bound to as many, fit on the machine."""
    cores = physical(affinity())
    return cores if cores * ranks <= physical(range(os.cpu_count() or 1)) else None
