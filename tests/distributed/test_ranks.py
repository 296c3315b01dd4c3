"""One rank or several: the same run."""

from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from lightning.fabric import Fabric
from problems import SIZES, classification, convolutional, everything, federation, hard

from fl_lightning import Algorithm, ClientData, SequentialExecutor, StackedExecutor, algorithms
from fl_lightning.callbacks import Evaluation, Personalization, PersonalModels
from fl_lightning.callbacks.scoring import FORWARD_LIMITS
from fl_lightning.core.draws import uniform
from fl_lightning.data import CropFlip
from fl_lightning.terms import AdaptiveClipping, CenteredClipping, Quantize, TopK

COHORTS = [[0, 1, 2, 4, 5], [3], [2, 3], [0, 1, 3, 4]]
"""Also one and two clients for three ranks."""

ROUNDS = 4


def cohort(num_clients: int, seed: int, round: int) -> list[int]:
    return COHORTS[round % len(COHORTS)]


def clients(dtype: torch.dtype, sizes: Sequence[int] = SIZES) -> ClientData:
    """Clients with images, short last batches, crops and flips, and work that is drawn."""
    options = {"shape": (1, 4, 6), "augment": CropFlip(padding=1), "epochs": uniform(1, 2)}
    return classification(sizes, dtype, **options)


METHODS = {
    "duals": algorithms.scaffold().with_outer_terms(*algorithms.feddyn().terms),
    "noise": Algorithm(TopK(0.3), Quantize(4), AdaptiveClipping(clip=0.5)),
    "robust": Algorithm(Quantize(4), CenteredClipping(0.1)),
}


def run(
    fabric: Fabric, executor: Any, folder: Path | None, exact: bool = False, method: str = "duals"
) -> dict[str, Any]:
    dtype = torch.float32 if exact else torch.float64
    federated = federation(
        hard(METHODS[method]),
        fabric=fabric,
        module=convolutional(1, dtype),
        clients=clients(dtype),
        sampler=cohort,
        executor=executor,
        rounds=ROUNDS,
        state_dir=folder,
        deterministic=exact,
    )
    evaluation = Evaluation(clients(dtype, [7]).dataset, batch_size=2)
    metrics = []
    for _ in range(ROUNDS):
        metrics.append(federated.train_round())
        with patch.dict(FORWARD_LIMITS, clear=True):
            evaluation.on_round_end(federated, metrics[-1])
    fabric.barrier()
    kept = {name: state.flatten().tolist() for name, state in everything(federated).items()}
    tags = [tag for tag in metrics[0] if not tag.startswith("time/")]
    apart = (federated.w.detach() - fabric.broadcast(federated.w.detach())).abs().max()
    apart = float(fabric.all_reduce(apart, reduce_op="sum"))
    return {**kept, **{tag: [m[tag] for m in metrics] for tag in tags}, "ranks apart": apart}


EXECUTORS = {"sequential": SequentialExecutor, "stacked": partial(StackedExecutor, width=2)}


@pytest.fixture(scope="module")
def launched(tmp_path_factory):
    @cache
    def launched(ranks: int, executor: str, exact: bool, method: str) -> dict[str, Any]:
        strategy = "auto" if ranks == 1 else "ddp_fork"
        fabric = Fabric(accelerator="cpu", devices=ranks, strategy=strategy)
        folder = tmp_path_factory.mktemp("rows") / "rows"
        options: Any = {"executor": EXECUTORS[executor], "folder": folder, "exact": exact}
        return fabric.launch(partial(run, method=method, **options))

    return launched


@pytest.mark.parametrize(
    ("executor", "exact", "ranks"),
    [
        ("sequential", False, 2),
        ("sequential", True, 3),
        ("stacked", False, 3),
        ("stacked", True, 2),
    ],
)
def test_several_ranks_train_what_one_rank_trains(executor, exact, ranks, launched):
    """Model, BatchNorm, states and scalars; with exact sums to the last bit of 32.

    Each two of executor, kind of sum and number of ranks meet.
    """
    alone, together = (launched(n, executor, exact, "duals") for n in (1, ranks))
    assert together["ranks apart"] == 0
    for name, numbers in alone.items():
        mine = torch.tensor(together[name], dtype=torch.float64)
        distance = (mine - torch.tensor(numbers, dtype=torch.float64)).abs().max()
        assert distance <= (0 if exact else 1e-12), name


def test_several_ranks_send_and_add_the_noise_of_one_rank(launched):
    """Compressed updates, error feedback, the server's noise and its clipping norm, bit by bit."""
    alone = launched(1, "sequential", True, "noise")
    assert alone["server C 2"] != 0.5
    for ranks in (2, 3):
        assert launched(ranks, "sequential", True, "noise") == alone


@pytest.mark.parametrize("exact", [False, True], ids=["plain sums", "exact sums"])
def test_several_ranks_combine_the_updates_of_one_rank(exact, launched):
    alone = launched(1, "sequential", exact, "robust")
    together = launched(3, "sequential", exact, "robust")
    apart = np.subtract(together["model"], alone["model"])
    assert abs(apart).max() <= (0 if exact else 1e-12)
    assert together["server c 1"] != [0] * len(apart)


def personal_models(fabric: Fabric, executor: Any, folder: Path) -> str:
    """The scores of the clients' personal models; of groups of four, the third rank has none."""
    given = {"module": convolutional(1, torch.float32), "clients": clients(torch.float32)}
    given |= {"fabric": fabric, "executor": executor, "rounds": 1, "deterministic": True}
    run = federation(algorithms.fedavg(), **given)
    test, path = clients(torch.float32, [40]).dataset, folder / "personal.csv"
    metrics = run.train_round() | Personalization(PersonalModels(test), [2], path).score(run)
    return str({name: x for name, x in metrics.items() if not name.startswith("time/")})


@pytest.mark.parametrize("executor", [SequentialExecutor, partial(StackedExecutor, width=4)])
def test_personal_models_score_the_same_on_three_ranks(executor, tmp_path):
    score = partial(personal_models, executor=executor, folder=tmp_path)
    together = Fabric(accelerator="cpu", devices=3, strategy="ddp_fork").launch(score)
    rows = (tmp_path / "personal.csv").read_text()
    assert together == score(Fabric(accelerator="cpu", devices=1))
    assert rows == (tmp_path / "personal.csv").read_text()


def test_without_a_folder_all_ranks_use_that_of_the_first(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    options: Any = {"executor": SequentialExecutor, "folder": None}
    ranks = Fabric(accelerator="cpu", devices=2, strategy="ddp_fork")
    together = ranks.launch(partial(run, **options))
    alone = run(Fabric(accelerator="cpu", devices=1), **options)
    assert together["clients' c_i"] == pytest.approx(alone["clients' c_i"], abs=1e-12)
