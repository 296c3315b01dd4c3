"""Samplers that look at the federation, and samplers of users."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.fabric import Fabric
from problems import classification, federation, on_two_ranks
from torch import nn

from fl_lightning import FederatedData, FederatedTrainer, UserError, algorithms
from fl_lightning.data import sources
from fl_lightning.experiment import Experiment
from fl_lightning.federation.client_selection import PowerOfChoice
from fl_lightning.models import mlp

CLIENTS = classification()


def cohorts(candidates: int, fabric: Fabric | None = None) -> list[list[int]]:
    """Those of two of the six clients in three rounds."""
    sampler = PowerOfChoice(1 / 3, CLIENTS.sizes, candidates)
    given: dict[str, Any] = {"fabric": fabric} if fabric else {}
    run = federation(algorithms.fedavg(), clients=CLIENTS, sampler=sampler, rounds=3, **given)
    drawn = []
    for _ in range(3):
        x, y, model = CLIENTS.dataset.x, CLIENTS.dataset.y, run.load_global()
        losses = torch.stack([run.loss(model(x[p]), y[p]) for p in CLIENTS.partition])
        drawn.append(sampler(6, run.seed, run.round, run))
        if candidates == 6:
            assert drawn[-1] == sorted(losses.topk(2).indices.tolist())
        run.train_round()
    return drawn


def test_power_of_choice_takes_the_candidates_with_the_largest_losses() -> None:
    assert cohorts(6) != cohorts(2)  # the latter draws by size alone
    assert all(len(cohort) == 2 for cohort in cohorts(1) + cohorts(4))


def test_ranks_choose_the_same_clients() -> None:
    alone = cohorts(6)
    assert on_two_ranks(partial(cohorts, 6)) == (alone, alone)


OWN = """
def turns(num_clients, seed, round, groups: int = 2):
    return [client for client in range(num_clients) if client % groups == round % groups]

turns.may_be_empty = True
"""


def test_a_function_of_a_file_chooses_the_clients(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "own.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    seen = []

    class Seen:
        def on_round_start(self, federation: Any, cohort: list[int]) -> None:
            seen.append(cohort)

    argv = ["--clients", "5", "--rounds", "6", "--sampling", "own.py:turns:groups=6"]
    argv += ["--local-steps", "1", "--run-dir", "run"]
    Experiment([sources.digits], [mlp], callbacks=[Seen()], argv=argv).run()
    assert seen == [[0], [1], [2], [3], [4], []]
    assert "sampling: own.py:turns:groups=6" in Path("run/config.yaml").read_text()


def test_the_trainer_takes_names_and_functions(tmp_path: Path, capsys: Any) -> None:
    x = torch.arange(24.0).view(12, 2)
    data = FederatedData((x, x.sum(1)), clients=[0, 1, 2] * 4)

    def last(num_clients: int, seed: int, round: int) -> list[int]:
        return [num_clients - 1]

    for sampling, name in [
        ("power_of_choice", "power_of_choice"),
        (partial(PowerOfChoice, candidates=3), "PowerOfChoice(candidates=3)"),
        (last, "last"),
    ]:
        options = {"rounds": 1, "loss": "mse", "lr": 1e-4, "run_dir": tmp_path / name}
        trainer = FederatedTrainer(sampling=sampling, **options)
        net = nn.Sequential(nn.Linear(2, 1), nn.Flatten(0))
        assert trainer.fit(net, data).config["sampling"] == name
    assert "chosen by last" in capsys.readouterr().out
    with pytest.raises(UserError, match="power_of_choice"):
        FederatedTrainer(sampling="power")
