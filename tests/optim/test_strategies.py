"""The wrappers on two ranks: equal to one process with the whole batch, or refused."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from optimizers import WRAPPERS, batches, train
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.multiprocessing import start_processes
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD


def network(width: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, 4)).double()


def sharded(model: nn.Module) -> nn.Module:
    mesh = init_device_mesh("cpu", (2,))
    for layer in model[0], model[2], model:
        fully_shard(layer, mesh=mesh)
    return model


STRATEGIES: dict[str, Any] = {
    "ddp": DistributedDataParallel,
    "fsdp1": lambda model: FullyShardedDataParallel(
        model, device_id=torch.device("cpu"), use_orig_params=True
    ),
    "fsdp2": sharded,
}


def outcome(strategy: str, width: int, wrap: str) -> list[Tensor] | str:
    """The weights after three steps with a half of each batch, or the error."""
    model = STRATEGIES[strategy](network(width))
    half = slice(8 * dist.get_rank(), 8 * dist.get_rank() + 8)
    try:
        optimizer = WRAPPERS[wrap](SGD(model.parameters(), lr=0.5))
        train(model, optimizer, [(x[half], y[half]) for x, y in batches(3)])
    except ValueError as error:
        return str(error)
    return [p.full_tensor() if strategy == "fsdp2" else p.detach() for p in model.parameters()]


def on_rank(rank: int, folder: Path, cases: list[tuple[str, int, str]]) -> None:
    dist.init_process_group("gloo", f"file://{folder}/ranks", rank=rank, world_size=2)
    torch.save([outcome(*case) for case in cases], folder / f"{rank}.pt")
    dist.destroy_process_group()


EXACT = [(strategy, 8, wrap) for strategy in ("ddp", "fsdp2") for wrap in ("sam", "asam")]
REFUSED = {
    ("fsdp1", 8, "sam"): "FSDP1 .* own shard: use DDP",
    ("fsdp2", 5, "sam"): r"\(5, 4\) .* evenly over 2 ranks: make dimension 0 a multiple of 2",
}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> list[dict[Any, Any]]:
    folder, cases = tmp_path_factory.mktemp("ranks"), [*EXACT, *REFUSED]
    start_processes(on_rank, (folder, cases), nprocs=2, start_method="fork")
    return [dict(zip(cases, torch.load(folder / f"{rank}.pt"), strict=True)) for rank in range(2)]


@pytest.mark.parametrize("case", EXACT, ids=str)
def test_ranks_equal_one_process(outcomes, case):
    alone = network(case[1])
    train(alone, WRAPPERS[case[2]](SGD(alone.parameters(), lr=0.5)), batches(3))
    for rank in outcomes:
        torch.testing.assert_close(rank[case], [p.detach() for p in alone.parameters()])


@pytest.mark.parametrize("case", REFUSED, ids=str)
def test_norms_of_a_part_of_the_weights_are_refused(outcomes, case):
    for rank in outcomes:
        assert re.search(REFUSED[case], str(rank[case]))
