"""What gives the same bits every time: PyTorch's switches, and one fit at a time."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock
from typing import Any

import torch
import torch.utils.deterministic
from torch.backends import cudnn

from fl_lightning.errors import UserError

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
