"""Processor cores, memory and threads that this process may use of its machine."""

import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from fl_lightning.distributed.launcher_env import under_fabric_run

MEMORY_PER_RANK = 3 * 1024**3
"""Memory of a rank: ResNet-18 on CIFAR-10 takes two thirds of it (benchmarks/RESULTS.md)."""


@dataclass(frozen=True)
class Machine:
    """Resources of this process.

    Attributes:
        cores: Physical cores that it may run on, at most its control groups' quota (cgroup v2).
        memory: Available bytes, at most those that its control groups' limits leave.
        threads: Threads of a rank by OMP_NUM_THREADS; None if the user has not set it.
    """

    cores: int
    memory: int
    threads: int | None = None

    @classmethod
    def here(cls) -> "Machine":
        """The resources of this process."""
        processors = affinity()
        shares = [limit.split() for limit in limits("cpu.max")]
        quotas = [max(1, int(busy) // int(period)) for busy, period in shares if busy != "max"]
        used = zip(limits("memory.max"), limits("memory.current"), strict=False)  # both or neither
        left = [max(0, int(limit) - int(current)) for limit, current in used if limit != "max"]
        return cls(
            min([physical(processors), *quotas]),
            min([_available(), *left]),
            _threads(len(processors)),
        )

    def ranks(self, clients: int) -> int:
        """The number of ranks for a round's clients: one a core, at most one a client or 3 GiB.

        With OMP_NUM_THREADS, all ranks together have at most as many threads as there are cores.
        """
        wanted = min(self.cores // (self.threads or 1), clients, self.memory // MEMORY_PER_RANK)
        return max(1, wanted)


def affinity() -> set[int]:
    """The processors, hyper-threads counted, that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def physical(processors: Iterable[int], folder: Path = Path("/sys/devices/system/cpu")) -> int:
    """The number of cores of these processors: hyper-threads of a core share its arithmetic units.

    `joblib.cpu_count(only_physical_cores=True)` counts hyper-threads where affinity is restricted.
    """
    files = [folder / f"cpu{i}/topology/thread_siblings_list" for i in processors]
    return len({file.read_text() if file.is_file() else str(file) for file in files})


def limits(
    name: str, groups: Path = Path("/sys/fs/cgroup"), process: Path = Path("/proc/self/cgroup")
) -> Iterator[str]:
    """Contents of a cgroup v2 file, in the group of this process and in those above it."""
    try:
        lines = process.read_text().splitlines()
    except OSError:
        return
    mine = next((line[3:] for line in lines if line.startswith("0::")), "")
    group = groups / mine.lstrip("/")
    for folder in (group, *group.parents):
        if folder.is_relative_to(groups) and (folder / name).is_file():
            yield (folder / name).read_text().strip()


def computes_bf16() -> bool:
    """Whether this processor computes bf16 itself; software is many times slower than float32."""
    return torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()


def _threads(processors: int) -> int | None:
    named = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    if not named.isdigit() or int(named) < 1:
        return None
    # `fabric run` itself sets it to all processors, for any number of ranks
    return None if under_fabric_run() and int(named) == processors else int(named)


def _available() -> int:
    """Bytes of memory that programs can still have; unlimited where the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return sys.maxsize
    found = (1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    return next(found, sys.maxsize)
