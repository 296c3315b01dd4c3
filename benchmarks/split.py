"""Where the time of our round goes, and how much of it is neither gradients nor updates.

    OMP_NUM_THREADS=1 python benchmarks/split.py --model lenet --algorithm fedavg --rounds 5
    OMP_NUM_THREADS=1 python benchmarks/split.py --model lenet --algorithm fedtoga --profile
    trace.json

Each part is what its functions take by themselves, without the other parts that they call.
`--profile` writes a round of two steps a client as a trace of `torch.profiler`, for chrome://tracing
or ui.perfetto.dev.
"""

import argparse
import time
from collections import defaultdict
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import torch
from contest import MODELS, SIZES, evaluate, federation, where
from lightning.fabric import Fabric
from torch.profiler import profile

from fl_lightning.core import oracle
from fl_lightning.core.algorithm import Algorithm
from fl_lightning.data import ClientData
from fl_lightning.data.client_data import Batches
from fl_lightning.distributed.launch import keep_freed_memory
from fl_lightning.executors import sequential
from fl_lightning.executors.replay import ReplayedStep
from fl_lightning.federation.aggregation import RoundSums
from fl_lightning.federation.client_store import ClientStore
from fl_lightning.federation.federation import Federation
from fl_lightning.federation.server import Server

PARTS: list[tuple[str, Any, tuple[str, ...]]] = [
    ("data", ClientData, ("visit",)),
    ("data", Batches, ("__getitem__",)),
    ("graphs", ReplayedStep, ("take",)),
    ("static tensors", ReplayedStep, ("begin", "end")),
    ("gradient", oracle.ForwardPass, ("__init__",)),
    ("gradient", sequential, ("objective",)),
    ("gradient", torch.autograd, ("grad",)),
    ("optimizer", torch.optim.SGD, ("step",)),
    ("terms", Algorithm, ("start", "gradient", "report")),
    ("state rows", ClientStore, ("prefetch", "read", "write", "wait_for_writes", "commit")),
    ("sums", RoundSums, ("add", "read")),
    ("all-reduce", Federation, ("all_reduce_sum",)),
    ("server", Server, ("step",)),
    ("evaluation", Federation, ("evaluate",)),
]


class Clock:
    """The time that each part takes by itself."""

    def __init__(self, device: torch.device):
        self.device, self.seconds = device, defaultdict[str, float](float)
        self._part, self._since = "the rest", time.perf_counter()

    def switch(self, part: str) -> str:
        """From now on time counts for `part`; returns the part before."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        now, before = time.perf_counter(), self._part
        self.seconds[before] += now - self._since
        self._part, self._since = part, now
        return before

    def watch(self, part: str, owner: Any, name: str) -> None:
        """Count what this function takes for `part`."""
        function: Callable[..., Any] = getattr(owner, name)

        @wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            before = self.switch(part)
            try:
                return function(*args, **kwargs)
            finally:
                self.switch(before)

        setattr(owner, name, timed)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", choices=MODELS, default="lenet")
    parser.add_argument("--algorithm", default="fedavg")
    parser.add_argument("--precision", default="32-true")
    parser.add_argument("--accelerator", default="cpu")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--samples", type=int, help="fewer samples a client, for a trial")
    parser.add_argument(
        "--test", type=int, default=0, help="evaluate on so many test images after each round"
    )
    parser.add_argument("--way", default="sequential", help="how clients train, see ways.py")
    parser.add_argument("--profile", type=Path)
    options = parser.parse_args()
    keep_freed_memory()
    fabric = Fabric(accelerator=options.accelerator, devices=1, precision=options.precision)
    sizes = {
        **SIZES.get(options.model, {}),
        **({"samples": options.samples} if options.samples else {}),
    }
    ours = federation(fabric, options.model, options.algorithm, way=options.way, **sizes)
    test = torch.randn(max(1, options.test), 3, 32, 32, device=fabric.device)

    def round() -> None:
        ours.train_round()
        if options.test:
            Federation.evaluate(ours, test)

    Federation.evaluate = evaluate  # the callback's stand-in, so that it is watched like the rest
    print(where())
    round()
    if options.profile:
        shown = min(sizes.get("samples", 500), 2 * sizes.get("batch", 50))
        few = {**sizes, "samples": shown}
        traced = federation(fabric, options.model, options.algorithm, way=options.way, **few)
        traced.train_round()
        with profile() as trace:
            traced.train_round()
        trace.export_chrome_trace(str(options.profile))
        print(f"trace of one round: {options.profile}")
    clock = Clock(fabric.device)
    for part, owner, names in PARTS:
        for name in names:
            clock.watch(part, owner, name)
    clock.switch("the rest")
    clock.seconds.clear()
    for _ in range(options.rounds):
        round()
    clock.switch("the rest")
    total = sum(clock.seconds.values())
    what = f"{options.model}, {options.algorithm}, {options.precision}, {options.way}"
    print(f"{what}: {total / options.rounds:.3f} s/round")
    for part, seconds in sorted(clock.seconds.items(), key=lambda item: -item[1]):
        each = 1e3 * seconds / options.rounds
        print(f"{part:14}{each:10.2f} ms/round {100 * seconds / total:6.1f} %")
    trained = total - clock.seconds["evaluation"]
    steps = sum(clock.seconds[part] for part in ("gradient", "optimizer", "graphs"))
    print(f"=> {what}: neither gradient nor optimizer: {100 * (1 - steps / trained):.1f} %")


if __name__ == "__main__":
    main()
