"""Scores of the global model on each client's own test rows."""

from functools import partial
from itertools import count
from math import isnan, nan
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import nn
from torchmetrics import MeanSquaredError

import fl_lightning as fl
from fl_lightning.callbacks import ClientScores, EarlyStopping, PersonalScores
from fl_lightning.callbacks.metrics import make_metrics, results, update

USERS = ["ann", "bob", "cem", "dan"]


def data(test: float | None = 0.25) -> fl.FederatedData:
    g = torch.Generator().manual_seed(0)
    x = torch.randn(80, 3, generator=g)
    y = x @ torch.tensor([1.0, -2.0, 0.5]) + torch.arange(80) % 4
    return fl.FederatedData((x, y), test, clients=[USERS[k % 4] for k in range(80)])


def trainer(folder: Path, every: int = 1, **options: Any) -> fl.FederatedTrainer:
    measure = partial(ClientScores, every=every)
    given = {"rounds": 1, "loss": "mse", "callbacks": [measure], "run_dir": folder, **options}
    return fl.FederatedTrainer(**given)


def trained(
    folder: Path, rounds: int, every: int = 2, **options: Any
) -> tuple[nn.Module, fl.FederatedTrainer]:
    torch.manual_seed(0)
    net = nn.Linear(3, 1)
    fit = trainer(folder, every, rounds=rounds, lr=0.05, metrics=["mae"], participation=1.0)
    fit.fit(net, data(), **options)
    return net, fit


def test_the_table_and_its_statistics_are_those_of_each_clients_test_rows(tmp_path):
    net, fit = trained(tmp_path / "run", 3)
    table = pd.read_csv(tmp_path / "run" / "clients.csv")
    assert table["round"].tolist() == [2] * 4 + [3] * 4
    last, held = table[table["round"] == 3], data().parts["test"]
    assert last["owner"].tolist() == USERS
    x, y = data().test
    errors = [net(x[rows]).flatten() - y[rows] for rows in held]
    expected = [e.square().mean().item() for e in errors]
    assert last["loss"].tolist() == pytest.approx(expected, rel=1e-5)
    assert last["mae"].tolist() == pytest.approx([e.abs().mean().item() for e in errors], rel=1e-5)
    assert last["samples"].tolist() == held.sizes.tolist()
    scalars = fit.history.iloc[-1]
    assert scalars["clients/loss"] == pytest.approx(sum(expected) / 4, rel=1e-5)
    assert scalars["clients/loss_worst10"] == pytest.approx(max(expected), rel=1e-5)
    spread = torch.tensor(expected).std(correction=0).item()
    assert scalars["clients/loss_std"] == pytest.approx(spread, rel=1e-4)
    frame = fit.test(data=data(), per_client=True)
    assert frame["test/loss"].tolist() == pytest.approx(expected, rel=1e-5)


def test_a_resumed_run_has_each_row_once(tmp_path):
    trained(tmp_path / "run", 3)
    with (tmp_path / "run" / "clients.csv").open("a") as file:
        file.write("2")  # as a kill in the middle of a line leaves it
    trained(tmp_path / "run", 6, resume=True)
    trained(tmp_path / "whole", 6)
    resumed, whole = (pd.read_csv(tmp_path / name / "clients.csv") for name in ("run", "whole"))
    pd.testing.assert_frame_equal(resumed, whole)


def test_rows_of_another_interval_stay_when_a_run_is_resumed(tmp_path):
    for rounds, every in ((4, 2), (7, 3), (9, 4)):  # round 7 is measured because it is the last
        trained(tmp_path, rounds, every, resume=rounds > 4)
    assert [*pd.read_csv(tmp_path / "clients.csv")["round"].unique()] == [2, 4, 6, 8, 9]


def test_rows_are_added_without_reading_those_before(tmp_path):
    contents = []

    class Follows:
        def on_round_logged(self, federation):
            if not contents:
                contents.append((tmp_path / "clients.csv").open())

    measures = [partial(ClientScores, every=1), Follows()]
    trainer(tmp_path, rounds=3, callbacks=measures).fit(nn.Linear(3, 1), data())
    with contents[0] as file:  # of the first round: another one if the table was written anew
        assert file.read() == (tmp_path / "clients.csv").read_text()


def test_owners_and_numbers_stay_as_they_were_written(tmp_path):
    x, y = data().train
    owned = fl.FederatedData((x, y), 0.25, clients=[("07", "1e3")[k % 2] for k in range(80)])
    for rounds in (1, 3):
        torch.manual_seed(0)
        trainer(tmp_path / f"run-{rounds}", rounds=rounds).fit(nn.Linear(3, 1), owned)
    first, table = ((tmp_path / f"run-{k}" / "clients.csv").read_text() for k in (1, 3))
    assert table.startswith(first)
    assert table.count(",07,") == table.count(",1e3,") == 3


def test_a_test_row_of_several_clients_is_scored_for_each(tmp_path):
    x, y = data().train
    shared = fl.Partition.from_lists([range(40), range(20, 60), range(40, 80)])
    owned = fl.FederatedData((x, y), 0.5, clients=shared)
    fit = trainer(tmp_path)
    fit.fit(nn.Linear(3, 1), owned)
    table = pd.read_csv(tmp_path / "clients.csv")
    assert table["samples"].tolist() == owned.parts["test"].sizes.tolist()
    frame = fit.test(data=owned, per_client=True)
    assert table["loss"].tolist() == pytest.approx(frame["test/loss"].tolist(), rel=1e-6)


def test_test_rows_without_owners_are_refused(tmp_path):
    x, y = data().train
    without = fl.FederatedData((x, y), (x, y), clients=[k % 4 for k in range(80)])
    with pytest.raises(fl.UserError, match="no client has test samples of its own"):
        trainer(tmp_path / "run").fit(nn.Linear(3, 1), without)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("classes", [2, 3])
def test_clients_that_do_not_define_a_metric_do_not_count(classes, tmp_path):
    g = torch.Generator().manual_seed(0)
    owners = [0] * 12 + [1] * 12 + [2] * 12
    x, y = torch.randn(36, 3, generator=g), torch.randint(classes, (36,), generator=g)
    y[12:24] = 1  # the second client has one class
    given = fl.FederatedData((x, y), test=0.5, clients=owners)
    fit = trainer(tmp_path, loss="cross_entropy", metrics=["auroc"])
    torch.manual_seed(0)
    net = nn.Linear(3, classes)
    fit.fit(net, given)
    x, y = given.test
    expected = [area(net(x[rows]).softmax(1), y[rows]) for rows in given.parts["test"]]
    recorded = pd.read_csv(tmp_path / "clients.csv")["auroc"]
    assert recorded.tolist() == pytest.approx(expected, nan_ok=True)
    assert recorded.isna()[1]
    assert recorded.notna()[2]
    assert fit.history["clients/auroc"].iloc[-1] == pytest.approx(recorded.mean())


def test_auroc_is_of_probabilities_also_where_outputs_lie_from_0_to_1():
    g = torch.Generator().manual_seed(0)
    scores, y = torch.rand(40, 3, generator=g), torch.randint(3, (40,), generator=g)
    metrics = make_metrics(["auroc"], 3, torch.device("cpu"))
    for rows in torch.arange(40).split(15):
        update(metrics.values(), scores[rows], y[rows])
    expected = area(scores.softmax(1), y)
    assert results(metrics)["auroc"] == pytest.approx(expected)
    assert expected != pytest.approx(area(scores, y))


def area(p: torch.Tensor, y: torch.Tensor) -> float:
    """The share of pairs in the right order, a mean over the classes that some samples have."""
    areas = []
    for k in range(1 if p.shape[1] == 2 else 0, p.shape[1]):
        inside, outside = p[y == k, k], p[y != k, k]
        if len(inside) and len(outside):
            areas.append((inside[:, None] > outside).double().mean().item())
    return sum(areas) / len(areas) if areas else float("nan")


@pytest.mark.parametrize(("size", "origin"), [(1.0, 0.0), (1.0, 2e4), (1e-4, 0.0)])
def test_r2_of_clients_whatever_the_unit_of_their_targets(size: float, origin: float):
    """One row, or rows of equal targets, define none."""
    x, y = torch.arange(20.0)[:, None], (torch.arange(20.0) % 7).where(torch.arange(20) < 12, 3.0)
    y = (origin + size * y)[:, None].double()
    owners = [0] * 8 + [1] * 4 + [2] * 8
    given = fl.FederatedData((x.double(), y), test=0.25, clients=owners)
    assert given.parts["test"].sizes.tolist() == [2, 1, 2]
    fit, module = fl.FederatedTrainer(loss="mse", metrics=["r2"]), nn.Linear(1, 1).double()
    scores = fit.test(module, given, per_client=True)["test/r2"].tolist()
    (x, y), mine = given.test, given.parts["test"][0]
    off, spread = (y - module(x))[mine], y[mine] - y[mine].mean()
    assert scores[0] == pytest.approx(1 - (off.square().sum() / spread.square().sum()).item())
    assert isnan(scores[1])
    assert isnan(scores[2])


def test_f1_is_not_defined_where_class_1_is_neither_there_nor_predicted():
    metrics = make_metrics(["f1"], 2, torch.device("cpu"))
    for y, expected in ((0, nan), (1, 0.0)):
        update(metrics.values(), torch.tensor([[1.0, 0.0]]), torch.tensor([y]))
        assert results(metrics)["f1"] == pytest.approx(expected, nan_ok=True)


@pytest.mark.parametrize("kind", ["clients", "own"])
def test_clients_scores_have_the_direction_of_the_metric(kind: str, tmp_path: Path) -> None:
    """One that rises with each call; by its name, smaller values would be better."""
    calls = count()

    class Dose(MeanSquaredError):
        higher_is_better = True

        def compute(self) -> torch.Tensor:
            return torch.tensor(float(next(calls)))

    measures = [partial(measure, every=1) for measure in (ClientScores, PersonalScores)]
    stop = EarlyStopping(patience=1, monitor=f"{kind}/dose")
    options: dict[str, Any] = {"metrics": {"dose": Dose()}, "callbacks": [*measures, stop]}
    run = trainer(tmp_path / "run", rounds=3, **options).fit(nn.Linear(3, 1), data())
    assert run.rounds == 3
    assert run.larger_is_better(f"{kind}/dose")
