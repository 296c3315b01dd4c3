"""The memory that this process may still take."""

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

ROOT = Path("/")

CGROUPS = (
    ("0::", "sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
    (
        r"\d+:(?:.*,)?memory(?:,.*)?:",
        "sys/fs/cgroup/memory",
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
        "total_inactive_file",
    ),
)
"""Of control groups in versions 2 and 1: the line in /proc/self/cgroup, folder, and file names."""


def available_memory() -> int:
    """Bytes that are free on this machine, at most what its control groups leave this process.

    Cached files that the system can drop count as free.
    """
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with suppress(OSError):  # not Linux
        machine = 1024 * _number("MemAvailable:", (ROOT / "proc/meminfo").read_text())
    return min([machine, *_left_by_groups()])


def _left_by_groups() -> Iterator[int]:
    """What the group of this process and each one above it leaves."""
    try:
        lines = (ROOT / "proc/self/cgroup").read_text()
    except OSError:
        return
    for line, place, limit, usage, inactive in CGROUPS:
        mine, top = re.search(f"^{line}/(.*)$", lines, re.MULTILINE), ROOT / place
        for folder in (top / mine[1], *(top / mine[1]).parents) if mine else ():
            if folder.is_relative_to(top) and (folder / limit).is_file():
                most, used, stat = ((folder / n).read_text() for n in (limit, usage, "memory.stat"))
                if most.strip() != "max":
                    yield max(0, int(most) - int(used) + _number(inactive, stat))


def _number(name: str, content: str) -> int:
    found = re.search(rf"^{name}\s+(\d+)", content, re.MULTILINE)
    return int(found[1]) if found else 0
