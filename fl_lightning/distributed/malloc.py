"""Settings of the C allocator for local steps, which allocate what the step before has freed."""

import ctypes
from contextlib import suppress

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # M_* of glibc's malloc.h


def keep_freed_memory() -> bool:
    """Let malloc keep large freed blocks for this process.

    By default glibc maps large blocks anew and returns free memory to the system, so that a step on
    the CPU spends much of its time in page faults: LeNet's took 1.3 times as long
    (benchmarks/RESULTS.md). With these settings the process does not shrink.

    Returns:
        Whether the C library took the settings; only glibc knows them.
    """
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        return bool(mallopt(_MMAP_THRESHOLD, 2**30) and mallopt(_TRIM_THRESHOLD, 2**31 - 1))
    return False
