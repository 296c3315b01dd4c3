"""What this process may use of its machine: processor cores, memory, threads."""

import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from fl_lightning.distributed.launcher_env import under_fabric_run

MEMORY_OF_A_RANK = 3 * 1024**3
"""Bytes that a rank is reckoned with: ResNet-18 on CIFAR-10 takes two thirds of it (benchmarks/RESULTS.md)."""


@dataclass(frozen=True)
class Machine:
    """What this process may use of its machine.

    Attributes:
        cores: Processor cores: those that it may run on, and no more than its control groups' quota
            (cgroup v2).
        memory: Bytes available, and no more than its control groups' limits leave.
        threads: Threads of a rank by OMP_NUM_THREADS; None where no user has set it.
    """

    cores: int
    memory: int
    threads: int | None = None

    @classmethod
    def here(cls) -> "Machine":
        """This one."""
        processors = affinity()
        shares = [limit.split() for limit in limits("cpu.max")]
        quota = [max(1, int(busy) // int(period)) for busy, period in shares if busy != "max"]
        used = zip(
            limits("memory.max"), limits("memory.current"), strict=False
        )  # a group has both or neither
        left = [max(0, int(limit) - int(current)) for limit, current in used if limit != "max"]
        return cls(
            min([physical(processors), *quota]),
            min([_available(), *left]),
            _threads(len(processors)),
        )

    def ranks(self, clients: int) -> int:
        """How many ranks pay: as many as cores, but no more than clients in a round, and 3 GiB of memory for each.

        Where OMP_NUM_THREADS names the threads of a rank, all ranks together have as many as there
        are cores.
        """
        return max(
            1, min(self.cores // (self.threads or 1), clients, self.memory // MEMORY_OF_A_RANK)
        )


def affinity() -> set[int]:
    """The processors, hyper-threads counted, that this process may run on."""
    return (
        os.sched_getaffinity(0)
        if hasattr(os, "sched_getaffinity")
        else set(range(os.cpu_count() or 1))
    )


def physical(processors: Iterable[int], folder: Path = Path("/sys/devices/system/cpu")) -> int:
    """How many cores these processors are: hyper-threads of one core share its arithmetic units."""
    files = [folder / f"cpu{i}/topology/thread_siblings_list" for i in processors]
    return len({file.read_text() if file.is_file() else str(file) for file in files})


def limits(
    name: str, groups: Path = Path("/sys/fs/cgroup"), process: Path = Path("/proc/self/cgroup")
) -> Iterator[str]:
    """What a file of cgroup v2 says in the group of this process and in those above it, where there are any."""
    try:
        mine = next(
            (line[3:] for line in process.read_text().splitlines() if line.startswith("0::")), None
        )
    except OSError:
        return
    group = groups / (mine or "").lstrip("/")
    for folder in (group, *group.parents):
        if folder.is_relative_to(groups) and (folder / name).is_file():
            yield (folder / name).read_text().strip()


def _threads(processors: int) -> int | None:
    named = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    if not named.isdigit() or int(named) < 1:
        return None
    # `fabric run` itself sets it to all of them, however many ranks it starts
    return None if under_fabric_run() and int(named) == processors else int(named)


def _available() -> int:
    """Bytes of memory that programs can still have; endless where the system does not tell."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return sys.maxsize
    return next(
        (1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")),
        sys.maxsize,
    )
