"""Ways to train the same clients, interleaved in one run: a bare loop, and our executors, plain and compiled.

    OMP_NUM_THREADS=1 python benchmarks/local_steps.py --model pfl --rounds 5
    python benchmarks/local_steps.py --model resnet18_gn --algorithm fedtoga --precision bf16-mixed --accelerator cuda

The bare loop is FedAvg as one would write it by hand: its model reset for each client, a loss, a step, a sum. On CUDA
there are also compiled steps that are replayed as CUDA graphs (torch.compile's reduce-overhead).
"""

import argparse
import os
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from contest import MODELS, SIZES, federation, table, take_turns, where
from lightning.fabric import Fabric
from torch import nn
from torch.nn import functional as F

from fl_lightning import ClientData
from fl_lightning.allocator import keep_freed_memory


def bare_loop(fabric: Fabric, model: nn.Module, clients: ClientData) -> Callable[[], None]:
    """One round of FedAvg by hand: the floor of what Python and eager PyTorch can do with this network."""
    start = {name: p.detach().clone() for name, p in model.named_parameters()}

    def round() -> None:
        total = {name: torch.zeros_like(p) for name, p in start.items()}
        for client in range(clients.num_clients):
            model.load_state_dict(start, strict=False)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for x, y in clients.visit(client, 0):
                optimizer.zero_grad()
                with fabric.autocast():
                    loss = F.cross_entropy(model(x), y)
                loss.backward()
                optimizer.step()
            for name, p in model.named_parameters():
                total[name] += p.detach()

    return round


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", choices=MODELS, default="lenet")
    parser.add_argument("--algorithm", default="fedavg")
    parser.add_argument("--precision", default="32-true")
    parser.add_argument("--accelerator", default="cpu")
    parser.add_argument("--samples", type=int, help="fewer samples a client than the benchmark's")
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--width", type=int, default=10, help="how many clients Stacked trains at once")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", help="some of the ways, as sequential,sequential compiled,stacked 10")
    options = parser.parse_args()
    keep_freed_memory()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    fabric = Fabric(accelerator=options.accelerator, devices=1, precision=options.precision)
    sizes: dict[str, Any] = {"samples": 500, "batch": 50, **SIZES.get(options.model, {})}
    sizes |= {"clients": options.clients, "cohort": options.clients}
    sizes |= {"samples": options.samples} if options.samples else {}
    ours = partial(federation, fabric, options.model, options.algorithm, **sizes)
    ways: dict[str, dict[str, Any]] = {
        "sequential": {},
        "sequential compiled": {"compiled": True},
        f"stacked {options.width}": {"width": options.width},
        f"stacked {options.width} compiled": {"width": options.width, "compiled": True},
    }
    if options.accelerator == "cuda":
        ways["sequential graph"] = {"compiled": True, "mode": "reduce-overhead"}
        ways[f"stacked {options.width} graph"] = {"width": options.width, "compiled": True, "mode": "reduce-overhead"}
    chosen = options.only.split(",") if options.only else list(ways)
    print(where())
    model = fabric.to_device(MODELS[options.model]())
    contestants: dict[str, Callable[[], Any]] = {"bare loop (FedAvg)": bare_loop(fabric, model, ours().clients)}
    contestants |= {f"{name} ({options.algorithm})": ours(**ways[name]).train_round for name in chosen}
    seconds = take_turns(contestants, options.rounds, options.accelerator)
    print(f"{options.model}, {options.precision}, {fabric.device}, {torch.get_num_threads()} thread(s)")
    print(table(seconds, sizes["clients"] * sizes["samples"]))


if __name__ == "__main__":
    main()
