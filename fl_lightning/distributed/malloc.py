"""The C allocator, told that a local step allocates what the one before has freed."""

import ctypes
from contextlib import suppress

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # M_* of glibc's malloc.h


def keep_freed_memory() -> bool:
    """Let malloc keep large freed blocks for this process instead of giving each back to the system.

    By default glibc maps large blocks anew and hands free memory back, so a step on the CPU spends
    much of its time in page faults: LeNet's took 1.3 times as long (benchmarks/RESULTS.md). The
    process stays as large as it has been.

    Returns:
        Whether the C library took the settings; others than glibc do not know them.
    """
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        return bool(mallopt(_MMAP_THRESHOLD, 2**30) and mallopt(_TRIM_THRESHOLD, 2**31 - 1))
    return False
