"""Run a program of several ranks, each of which would take a GPU of its own, on the first GPU.

    python -m torch.distributed.run --standalone --nproc_per_node=3 benchmarks/one_gpu.py PROGRAM
    ARGUMENTS

NCCL refuses one GPU twice, so gloo adds up, in the host's memory.
"""

import runpy
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed

init_process_group = torch.distributed.init_process_group


def _gloo(*_: Any, **named: Any) -> None:
    init_process_group(
        "gloo", **{name: value for name, value in named.items() if name != "backend"}
    )


if __name__ == "__main__":
    torch.cuda.set_device = lambda device: None
    torch.distributed.init_process_group = _gloo
    sys.argv = sys.argv[1:]
    sys.path[0] = str(Path(sys.argv[0]).resolve().parent)
    runpy.run_path(sys.argv[0], run_name="__main__")
