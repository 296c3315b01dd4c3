"""What our round costs over its local steps: a bare PyTorch loop, Sequential and Stacked, interleaved in one run.

    python benchmarks/local_steps.py --model lenet --rounds 7

All three take the same SGD steps on the same random images: 10 clients of 200 samples, batch 20, one epoch. Printed are
the median seconds a round and their ratio to the bare loop; quote ratios only, and only from one run.
"""

import argparse
import time
from collections.abc import Callable
from functools import partial
from statistics import median

import torch
import torch.nn.functional as F
from lightning.fabric import Fabric
from torch import nn

from fl_lightning import ClientData, Dataset, Federation, Sequential, Stacked, algorithms
from fl_lightning.data import schemes
from fl_lightning.models import lenet, mlp, resnet18_gn

MODELS: dict[str, Callable[[], nn.Module]] = {
    "mlp": partial(mlp, 3 * 32 * 32, 10),
    "lenet": lenet,
    "resnet18_gn": resnet18_gn,
}
CLIENTS, SAMPLES, BATCH, LR = 10, 200, 20, 0.1


def bare_loop(model: nn.Module, clients: ClientData) -> Callable[[], None]:
    """One round of FedAvg as one would write it by hand: the floor."""
    start = {name: p.detach().clone() for name, p in model.named_parameters()}

    def round() -> None:
        total = {name: torch.zeros_like(p) for name, p in start.items()}
        for client in range(CLIENTS):
            model.load_state_dict(start, strict=False)
            optimizer = torch.optim.SGD(model.parameters(), lr=LR)
            for x, y in clients.visit(client, 0):
                optimizer.zero_grad()
                F.cross_entropy(model(x), y).backward()
                optimizer.step()
            for name, p in model.named_parameters():
                total[name] += p.detach()

    return round


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", choices=MODELS, default="lenet")
    parser.add_argument("--algorithm", choices=algorithms(), default="fedavg")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    fabric = Fabric(devices=1)
    x = torch.randint(0, 256, (CLIENTS * SAMPLES, 3, 32, 32), dtype=torch.uint8)
    data = Dataset(x, torch.arange(len(x)) % 10, tuple("0123456789"), (0.5,) * 3, (0.25,) * 3).to(fabric.device)
    clients = ClientData(data, schemes.iid(data.y, CLIENTS, 0), batch_size=BATCH)

    def ours(executor: Callable[..., Sequential | Stacked]) -> Callable[[], object]:
        algorithm = algorithms()[options.algorithm]()
        return Federation(
            fabric, MODELS[options.model](), algorithm, clients, rounds=10**6, executor=executor
        ).train_round

    contestants: dict[str, Callable[[], object]] = {
        "bare loop (FedAvg)": bare_loop(fabric.to_device(MODELS[options.model]()), clients),
        f"Sequential ({options.algorithm})": ours(Sequential),
        f"Stacked, 10 at once ({options.algorithm})": ours(partial(Stacked, width=CLIENTS)),
    }
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(options.rounds + 1):
        for name, round in contestants.items():
            started = time.perf_counter()
            round()
            if fabric.device.type == "cuda":
                torch.cuda.synchronize()
            seconds[name].append(time.perf_counter() - started)
    floor = median(next(iter(seconds.values()))[1:])
    print(f"{options.model}, {fabric.device}, {torch.get_num_threads()} thread(s), median of {options.rounds} rounds")
    for name, each in seconds.items():
        print(f"{name:40} {median(each[1:]):8.3f} s/round   {median(each[1:]) / floor:6.2f} x")


if __name__ == "__main__":
    main()
