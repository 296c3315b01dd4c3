"""Memory of LoRA: 100 clients of a model of some 10 million frozen weights with adapters of rank 8.

    python benchmarks/lora_memory.py stacked fedsa_lora

Prints bytes a client keeps, receives and sends, the largest memory of the process in a round, and
the size of a checkpoint without the clients' rows. Needs the extra `lora`.
"""

import resource
import sys
from functools import partial
from io import BytesIO

import torch
from lightning.fabric import Fabric

from fl_lightning import (
    ClientData,
    DeviceDataset,
    Federation,
    Partition,
    SequentialExecutor,
    StackedExecutor,
    algorithms,
)
from fl_lightning.models.huggingface import huggingface

WIDTH = 10
"""Clients that train in parallel."""


def peak() -> float:
    """The largest memory of this process so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main(executor: str, method: str = "fedsa_lora") -> None:
    """Train one round and print."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    module = huggingface(
        "llama",
        lora_rank=8,
        width=320,
        layers=6,
        heads=5,
        vocabulary=2000,
        lora_targets=("q_proj", "v_proj"),
    )
    tokens = torch.randint(2000, (200, 17))
    data = DeviceDataset(tokens[:, :-1].clone(), tokens[:, 1:].clone(), ())
    clients = ClientData(
        data, Partition.from_owners(torch.arange(200) % 100, 100), batch_size=2, steps=1
    )
    make = SequentialExecutor if executor == "sequential" else partial(StackedExecutor, width=WIDTH)
    fabric = Fabric(accelerator="cpu", devices=1)
    run = Federation(
        fabric, module, getattr(algorithms, method)(), clients, rounds=1, executor=make
    )
    base = sum(p.numel() * p.element_size() for p in run.server.frozen.values())
    before, metrics = peak(), run.train_round()
    adapters, kept = 4e-3 * run.layout.size, 4e-3 * run.cost.client_state
    print(f"{method}, {executor}: base {base / 1e6:.2f} MB, adapters {adapters:.1f} kB")
    received, sent = (10 * metrics[f"comm/{way}link_mb"] for way in ("down", "up"))
    print(f"a client keeps {kept:.1f} kB, receives {received:.1f} kB and sends {sent:.1f} kB")
    print(f"largest memory: {before:.0f} MB before a round, {peak():.0f} MB after it")
    run.store.retain()
    torch.save(run.state_dict(), checkpoint := BytesIO())
    print(f"a checkpoint holds {checkpoint.tell() / 1e6:.2f} MB")


if __name__ == "__main__":
    main(*sys.argv[1:])
