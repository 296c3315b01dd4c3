"""PyTorch's switches for arithmetic that gives the same bits every time."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.utils.deterministic
from torch.backends import cudnn


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
