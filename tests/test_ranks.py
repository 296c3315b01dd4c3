"""One rank or several: the same run."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.fabric import Fabric
from problems import classification, classifier, federation, hard, rows, server

from fl_lightning import Sequential, Stacked, catalogue

COHORTS = [[0, 1, 2, 4, 5], [3], [2, 3], [0, 1, 3, 4]]
"""Also one and two clients for three ranks."""

EXECUTORS = {"sequential": Sequential, "stacked": partial(Stacked, width=2)}


def run(fabric: Fabric, executor: Any, dtype: torch.dtype, folder: Path | None) -> dict[str, Any]:
    """What is left after four rounds, as plain numbers."""
    cohorts: list[list[int]] = []

    def participation(num_clients: int, seed: int, round: int) -> list[int]:
        cohorts.append(COHORTS[round])
        return COHORTS[round]

    federated = federation(
        hard(catalogue.scaffold().and_then(*catalogue.feddyn().terms)),
        fabric=fabric,
        module=classifier(dtype=dtype),
        clients=classification(dtype=dtype, epochs=1),
        participation=participation,
        executor=executor,
        rounds=len(COHORTS),
        state_dir=folder,
    )
    metrics = [federated.train_round() for _ in COHORTS]
    fabric.barrier()
    kept = {name: rows(federated, name).flatten().tolist() for name in ("c_i", "h_i")}
    kept |= {name: server(federated, name).tolist() for name in ("c", "h")}
    kept |= {name: buffer.double().flatten().tolist() for name, buffer in federated.buffers.items()}
    kept |= {name: [m[name] for m in metrics] for name in metrics[0] if not name.startswith("time/")}
    apart = (federated.w.detach() - fabric.broadcast(federated.w.detach())).abs().max()
    return {
        "cohorts": cohorts,
        "ranks apart": float(fabric.all_reduce(apart, reduce_op="sum")),
        "numbers": {"model": federated.w.detach().tolist(), **kept},
    }


def launched(ranks: int, executor: str, dtype: torch.dtype, folder: Path) -> dict[str, Any]:
    strategy = "auto" if ranks == 1 else "ddp_fork"
    fabric = Fabric(accelerator="cpu", devices=ranks, strategy=strategy)
    return fabric.launch(partial(run, executor=EXECUTORS[executor], dtype=dtype, folder=folder / f"{ranks}"))


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-6)], ids=str)
@pytest.mark.parametrize("executor", EXECUTORS)
def test_several_ranks_train_what_one_rank_trains(
    executor: str, dtype: torch.dtype, tolerance: float, tmp_path: Path
) -> None:
    """Cohorts, model, BatchNorm statistics, states of server and clients, scalars; some ranks without a client."""
    alone = launched(1, executor, dtype, tmp_path)
    assert alone["cohorts"] == COHORTS
    for ranks in (2, 3):
        together = launched(ranks, executor, dtype, tmp_path)
        assert together["cohorts"] == COHORTS
        assert together["ranks apart"] == 0
        for name, numbers in alone["numbers"].items():
            apart = torch.tensor(together["numbers"][name]).double() - torch.tensor(numbers).double()
            assert apart.abs().max() <= tolerance, f"{name} with {ranks} ranks"


def test_without_a_folder_all_ranks_use_that_of_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp_fork")
    together = fabric.launch(partial(run, executor=Sequential, dtype=torch.float64, folder=None))
    alone = launched(1, "sequential", torch.float64, tmp_path)
    assert together["numbers"]["c_i"] == pytest.approx(alone["numbers"]["c_i"], abs=1e-12)
