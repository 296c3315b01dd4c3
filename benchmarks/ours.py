"""Our rounds alone, on any number of ranks: what the other benchmarks start beside the peers.

    python benchmarks/ours.py --model pfl --ranks 2 --rounds 8 --precision bf16-mixed

`--model pfl` is pfl-research's CIFAR-10 benchmark: 1000 users x 50 images, 50 a round, one epoch,
batch 10; the others are 10 clients x 500 images, batch 50. Each rank takes OMP_NUM_THREADS threads.
On CUDA with fewer GPUs than ranks all share the first one.
"""

import argparse
import os
import time
from statistics import mean, median
from typing import Any

import torch
from contest import MODELS, SIZES, evaluate, federation
from lightning.fabric import Fabric
from lightning.fabric.strategies import DDPStrategy
from ways import switched

from fl_lightning.distributed.launch import keep_freed_memory


def fabric_of(accelerator: str, ranks: int, precision: Any) -> Fabric:
    """So many ranks. With fewer GPUs all share the first one, over gloo, as NCCL refuses that."""
    if accelerator == "cuda" and ranks > torch.cuda.device_count():
        shared = DDPStrategy(
            parallel_devices=[torch.device("cuda", 0)] * ranks, process_group_backend="gloo"
        )
        return Fabric(strategy=shared, precision=precision)
    strategy = "ddp" if ranks > 1 else "auto"
    return Fabric(accelerator=accelerator, strategy=strategy, devices=ranks, precision=precision)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", choices=MODELS, default="pfl")
    parser.add_argument("--algorithm", default="fedavg")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--precision", default="32-true")
    parser.add_argument("--accelerator", default="cpu")
    parser.add_argument("--way", default="sequential", help="how clients train, see ways.py")
    parser.add_argument(
        "--like-fl-simulator", action="store_true", help="with crops, clipping and weight decay"
    )
    parser.add_argument(
        "--epochs", type=int, default=1, help="passes of a client over its images in a round"
    )
    parser.add_argument(
        "--evaluate-every",
        type=int,
        default=0,
        help="rounds between passes over the test images",
    )
    parser.add_argument("--clients", type=int, help="fewer clients than the benchmark, for a trial")
    parser.add_argument("--samples", type=int, help="fewer samples a client, for a trial")
    parser.add_argument("--test", type=int, default=10_000, help="test images of an evaluation")
    options = parser.parse_args()
    keep_freed_memory()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    fabric = fabric_of(options.accelerator, options.ranks, options.precision)
    fabric.launch()
    sizes = dict(SIZES.get(options.model, {}))
    if options.clients:
        sizes.update(clients=options.clients, cohort=min(options.clients, sizes.get("cohort", 10)))
    if options.samples:
        sizes.update(samples=options.samples)
    ours = federation(
        fabric,
        options.model,
        options.algorithm,
        way=options.way,
        epochs=options.epochs,
        like_fl_simulator=options.like_fl_simulator,
        **sizes,
    )
    test = torch.randn(
        options.test if options.evaluate_every else 0, 3, 32, 32, device=fabric.device
    )
    train_round, seconds, busy = (
        switched(options.way, ours.train_round),
        list[float](),
        list[float](),
    )
    for round in range(options.rounds):
        started, worked = time.perf_counter(), time.process_time()
        train_round()
        if options.evaluate_every and (round + 1) % options.evaluate_every == 0:
            evaluate(ours, test)
        if fabric.device.type == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - started)
        busy.append(time.process_time() - worked)
    digest = ours.w.detach().double().abs().sum().item()
    fabric.print(
        f"ours: median {median(seconds[1:]):.4f} s/round, min {min(seconds[1:]):.4f} s/round, "
        f"all {len(seconds)} rounds {sum(seconds):.1f} s, "
        f"CPU of this rank {median(busy[1:]):.4f} s/round, digest {digest:.6f}"
    )
    then, scored = mean(seconds[1:]), " with evaluations" if options.evaluate_every else ""
    pace = f"{options.way}, first round {seconds[0]:.1f} s, then {then:.4f} s{scored}"
    total = f"800 such rounds take {seconds[0] + 799 * then:.0f} s"
    fabric.print(f"=> {options.model} {options.algorithm} {options.precision}: {pace}; {total}")


if __name__ == "__main__":
    main()
