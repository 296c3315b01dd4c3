"""The memory that this process may still take."""

import sys
from collections.abc import Iterator
from pathlib import Path

GROUPS, PROCESS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def available_memory() -> int:
    """Bytes that are free on this machine, at most what the control groups leave (cgroup v2)."""
    used = zip(_limits("memory.max"), _limits("memory.current"), strict=False)  # both or neither
    left = [max(0, int(limit) - int(current)) for limit, current in used if limit != "max"]
    return min([_free_on_machine(), *left])


def _limits(name: str) -> Iterator[str]:
    """Contents of a cgroup v2 file, in the group of this process and in those above it."""
    try:
        lines = PROCESS.read_text().splitlines()
    except OSError:
        return
    mine = next((line[3:] for line in lines if line.startswith("0::")), "")
    group = GROUPS / mine.lstrip("/")
    for folder in (group, *group.parents):
        if folder.is_relative_to(GROUPS) and (folder / name).is_file():
            yield (folder / name).read_text().strip()


def _free_on_machine() -> int:
    """Unlimited where the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return sys.maxsize
    found = (1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    return next(found, sys.maxsize)
