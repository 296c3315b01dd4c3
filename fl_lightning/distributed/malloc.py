"""Settings of the C allocator for local steps, which allocate what the step before has freed."""

import ctypes
from contextlib import suppress

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # M_* of glibc's malloc.h


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
