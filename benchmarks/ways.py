"""Ways to train the clients of a round, by name.

A way is words joined by `-`. First who trains together: `sequential` (one client after another),
`stacked` (ten as one batched program; `stacked50`: fifty) or `branches` (ten side by side, each
with its own dense kernels); `sequential` if none is named. Then any of

- `compile`: the local step by torch.compile;
- `graph`: the local step as a CUDA graph, as in branches always;
- `unfold`: convolutions as patches and one matrix product, which vmap turns into a batched product;
- `fp32`: TF32 in no float32 product (PyTorch by itself: in convolutions alone).
"""

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import torch
from unfolding import Unfolding

from fl_lightning import SequentialExecutor, StackedExecutor
from fl_lightning.executors import Executor, GraphExecutor

NAME = re.compile(r"(sequential|stacked|branches)(\d*)((-(compile|graph|unfold|fp32))*)")


def executor_of(way: str, batch: int) -> Callable[..., Executor]:
    """The executor of a way, for steps of so many samples."""
    name = NAME.fullmatch(way) or NAME.fullmatch(f"sequential-{way}")
    if not name:
        raise SystemExit(f"{way!r} is no way to train clients: see benchmarks/ways.py")
    together, how = name[1], name[3].split("-")
    width = 1 if together == "sequential" else int(name[2] or 10)
    given = {"width": width, "compiled": batch if "compile" in how else 0}
    make: Callable[..., Executor] = SequentialExecutor
    if together == "branches" or "graph" in how:
        make = partial(GraphExecutor, stacked=together == "stacked", **given)
    elif together == "stacked" or "compile" in how:
        make = partial(StackedExecutor, **given)
    return partial(_unfolding, make) if "unfold" in how else make


def switched(way: str, function: Callable[[], Any]) -> Callable[[], None]:
    """The function, called with PyTorch's own switches as a way wants them."""
    cuda, cudnn = torch.backends.cuda, torch.backends.cudnn

    def call() -> None:
        before = cudnn.allow_tf32, cuda.matmul.allow_tf32
        if "fp32" in way.split("-"):
            cudnn.allow_tf32 = cuda.matmul.allow_tf32 = False
        try:
            function()
        finally:
            cudnn.allow_tf32, cuda.matmul.allow_tf32 = before

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
