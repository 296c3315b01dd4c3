"""Ways to train the clients of a round, by name: fl_lightning's, and candidates for a GPU.

A way is words joined by `-`. First who trains together: `sequential` (one client after another),
`stacked` (ten as one batched program; `stacked50`: fifty) or `branches` (ten as parallel branches
of one CUDA graph, each with its own dense kernels); `sequential` if none is named. Then any of

- `compile`: the local step by torch.compile; with `trees` in its mode "reduce-overhead", replayed
    as CUDA graphs;
- `graph`: the local step as a CUDA graph of our own, without `compile` of PyTorch's eager kernels;
- `unfold`: convolutions as patches and one matrix product, which vmap turns into a batched product;
- `tf32` or `fp32`: TF32 for all float32 products or for none (PyTorch by itself: in convolutions
    alone);
- `autotune`: cuDNN times its algorithms, at the first step of each shape.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import torch
from replayed import Replayed
from unfolding import Unfolding

from fl_lightning import SequentialExecutor, StackedExecutor
from fl_lightning.executors import Executor

NAME = re.compile(
    r"(sequential|stacked|branches)(\d*)((-(compile|trees|graph|unfold|tf32|fp32|autotune))*)"
)


def executor_of(way: str, batch: int) -> Callable[..., Executor]:
    """The executor of a way, for steps of so many samples."""
    name = NAME.fullmatch(way) or NAME.fullmatch(f"sequential-{way}")
    if not name:
        raise SystemExit(f"{way!r} is no way to train clients: see benchmarks/ways.py")
    together, how = name[1], name[3].split("-")
    width = 1 if together == "sequential" else int(name[2] or 10)
    make: Callable[..., Executor] = SequentialExecutor
    if together == "branches" or "graph" in how:
        kernels = "compiled" if "compile" in how else "eager"
        make = partial(
            Replayed, width=width, compiled=batch, branches=together == "branches", kernels=kernels
        )
    elif together != "sequential" or "compile" in how:
        mode = "reduce-overhead" if "trees" in how else "default"
        make = partial(
            StackedExecutor, width=width, compiled=batch if "compile" in how else 0, mode=mode
        )
    return partial(_unfolding, make) if "unfold" in how else make


def switched(way: str, function: Callable[[], Any]) -> Callable[[], None]:
    """The function, called with PyTorch's own switches as a way wants them."""
    how, cuda, cudnn = way.split("-"), torch.backends.cuda, torch.backends.cudnn

    def call() -> None:
        before = cudnn.benchmark, cudnn.allow_tf32, cuda.matmul.allow_tf32
        cudnn.benchmark = "autotune" in how
        if "tf32" in how or "fp32" in how:
            cudnn.allow_tf32 = cuda.matmul.allow_tf32 = "tf32" in how
        try:
            function()
        finally:
            cudnn.benchmark, cudnn.allow_tf32, cuda.matmul.allow_tf32 = before

    return call


def _unfolding(
    make: Callable[..., Executor], *given: Any, autocast: Any, **options: Any
) -> Executor:
    @contextmanager
    def both() -> Iterator[None]:
        context: AbstractContextManager[Any] = autocast()
        with context, Unfolding():
            yield

    return make(*given, autocast=both, **options)
