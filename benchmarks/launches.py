"""Operations that a local step asks of a GPU, counted on a CPU.

    OMP_NUM_THREADS=1 python benchmarks/launches.py
    OMP_NUM_THREADS=1 python benchmarks/launches.py --models lenet --methods fedavg --largest 10

An operation is a call of PyTorch's dispatcher that is neither a view nor an allocation; a GPU runs
one kernel or a few for each. A cast changes the number type and nothing else. A library call is a
convolution, a matrix product, or the backward pass of one. Counted is what a visit of three steps
has over a visit of two: crops, clipping and weight decay as in FL-Simulator, bf16-mixed. Where
clients are stacked the step is that of all clients, whatever their number.

What differs between the devices is as on a GPU: CUDA's autocast computes group normalization and
cross entropy in float32, and the batches of a visit are made together.
"""

import argparse
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from contest import MODELS, federation
from lightning.fabric import Fabric
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from fl_lightning.core import device
from fl_lightning.data.client_data import Batches

NO_KERNEL = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"}
NO_KERNEL |= {"_unsafe_view", "_record_function_enter_new", "_record_function_exit"}
"""Allocations, and what PyTorch does not call a view or runs for its profiler."""

LIBRARY_CALLS = {"convolution", "convolution_backward", "mm", "addmm", "bmm", "baddbmm"}
IN_FLOAT32 = ("group_norm", "cross_entropy", "log_softmax")
"""Functions of the two models that CUDA's autocast computes in float32, and a CPU's does not."""


class Launches(TorchDispatchMode):
    """Counts operations by name.

    Attributes:
        counts: How often each was called; casts have a name of their own.
    """

    def __init__(self) -> None:
        super().__init__()
        self.counts = Counter[str]()

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        out = function(*args, **(kwargs or {}))
        name = function._overloadpacket.__name__
        if name == "_to_copy" and not isinstance(args[0], torch.Tensor):
            return out  # a Python number, which `vmap` casts on the CPU
        if name == "_to_copy" and out.dtype != args[0].dtype:
            name = "cast"
        if not function.is_view and name not in NO_KERNEL:
            self.counts[name] += 1
        return out


def step(model: str, method: str, way: str, precision: str = "bf16-mixed") -> Counter[str]:
    """The operations of a local step by name."""
    clients = 1 if way == "sequential" else 2
    counts = []
    for steps in (2, 3):
        run = federation(
            Fabric(accelerator="cpu", devices=1, precision=precision),
            model,
            method,
            clients=clients,
            samples=2 * steps,
            batch=2,
            like_fl_simulator=True,
            way=way,
        )
        with as_on_a_gpu(), Launches() as launches:
            run.train_round()
        counts.append(launches.counts)
    return counts[1] - counts[0]


@contextmanager
def as_on_a_gpu() -> Iterator[None]:
    """Let a CPU take a GPU's choices, as far as the counted models meet them."""
    plain = Batches.__init__

    def together(self: Batches, *args: Any) -> None:
        plain(self, *args[:-1], 10**9)

    with ExitStack() as stack:
        stack.enter_context(patch.object(Batches, "__init__", together))
        stack.enter_context(patch.object(device, "on_gpu", lambda x: True))
        for name in IN_FLOAT32:
            stack.enter_context(patch.object(F, name, in_float32(getattr(F, name))))
        yield


def in_float32(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with float32 inputs, outside of autocast."""

    def called(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = tree_map_only(
            torch.Tensor, lambda t: t.float() if t.is_floating_point() else t, (args, kwargs)
        )
        with torch.autocast("cpu", enabled=False):
            return function(*args, **kwargs)

    return called


def row(counts: Counter[str], *cells: str, largest: int) -> str:
    """A row of the table: its first cells, then the numbers."""
    numbers = counts.total(), counts["cast"], sum(counts[name] for name in LIBRARY_CALLS)
    named = ", ".join(f"{n} {name}" for name, n in counts.most_common(largest))
    return f"| {' | '.join(map(str, (*cells, *numbers)))} | {named}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Count and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--models", choices=MODELS, nargs="+", default=["lenet", "resnet18_gn"])
    parser.add_argument("--methods", nargs="+", default=["fedavg", "fedtoga"])
    parser.add_argument("--ways", nargs="+", default=["sequential", "stacked2"])
    parser.add_argument("--largest", type=int, default=0, help="name so many kinds of operations")
    options = parser.parse_args(arguments)
    print("| model | method | clients | operations a step | casts | library calls |")
    print("|---|---|---|---|---|---|")
    for model in options.models:
        for method in options.methods:
            for way in options.ways:
                counts = step(model, method, way)
                print(row(counts, model, method, way, largest=options.largest), flush=True)


if __name__ == "__main__":
    main()
