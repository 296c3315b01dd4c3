"""Clients' own models in the run's folder."""

from functools import partial
from pathlib import Path

import pandas
import pytest
import torch
from lightning_modules import rows, trainer
from refusals import experiment
from torch import nn

import fl_lightning as fl
from fl_lightning.runs.run import Run

WRITE = "--callback", "personal_weights"


def own_accuracies(run: Run, module: nn.Module, data: fl.FederatedData) -> list[float]:
    found, (x, y) = [], data.test
    for client, own in enumerate(data.parts["test"]):
        scores = run.model(module, client=client)(x[own])
        found.append((scores.argmax(1) == y[own]).double().mean().item())
    return found


@pytest.mark.parametrize(
    "algorithm", ["fedavg", "fedbn", "fedbabu", "ditto", "pfedme", "apfl", "local_only"]
)
@pytest.mark.parametrize("epochs", [0, 2])
def test_the_weights_are_those_of_the_models_that_are_scored(algorithm: str, epochs: int) -> None:
    given = fl.FederatedData(tuple(rows(80).values()), clients=[0, 1, 2, 3] * 20, test=0.4)
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))
    if algorithm == "fedavg":
        module[0].requires_grad_(False)
    own = partial(fl.callbacks.PersonalWeights, epochs)
    fit = trainer(algorithm, rounds=3, finetune_epochs=[epochs], callbacks=[own])
    run = fit.fit(module, given)
    personal = pandas.read_csv(run.path / "personal.csv")
    assert own_accuracies(run, module, given) == pytest.approx(personal[f"accuracy_{epochs}"])


def test_a_finished_run_writes_them_when_it_is_resumed(tmp_path: Path) -> None:
    options = "--algorithm", "fedper", "--finetune-epochs", "0"
    experiment(tmp_path / "whole", *options, *WRITE).run()
    experiment(tmp_path / "later", *options).run()
    run = Run.read(tmp_path / "later")
    with pytest.raises(fl.UserError, match="personal_weights"):
        run.model(client=2)
    experiment(tmp_path / "later", "--resume", *WRITE).run()
    whole = Run.read(tmp_path / "whole").model(client=2).state_dict()
    torch.testing.assert_close(run.model(client=2).state_dict(), whole, rtol=0, atol=0)
    with pytest.raises(fl.UserError, match=r"best\.pt and personal/2\.pt"):
        run.model(best=True, client=2)


def test_a_run_that_is_extended_has_none_of_its_former_last_round(tmp_path: Path) -> None:
    given = fl.FederatedData(tuple(rows(20).values()), clients=[0, 1] * 10)
    module, write = nn.Linear(6, 3), [fl.callbacks.PersonalWeights]
    run = trainer(run_dir=tmp_path / "run", rounds=1, callbacks=write).fit(module, given)
    run.model(module, client=1)
    run = trainer(run_dir=tmp_path / "run", rounds=2).fit(module, given, resume=True)
    with pytest.raises(fl.UserError, match="personal_weights"):
        run.model(module, client=1)


def test_votes_of_samples_are_no_weights(tmp_path, sentence) -> None:
    votes = experiment(tmp_path / "run", "--algorithm", "knn_per", *WRITE)
    assert "personal_scores" in sentence(votes.run)


def test_a_model_that_is_not_finite_ends_the_run_unless_clients_may_be_skipped(
    tmp_path, sentence
) -> None:
    options = "--callback", "personal_weights:epochs=1,lr=1e38"
    assert "fine-tuning of clients 0, 1" in sentence(experiment(tmp_path / "stop", *options).run)
    experiment(tmp_path / "skip", *options, "--on-divergence", "skip-client").run()
    assert not (tmp_path / "skip" / "personal").exists()
