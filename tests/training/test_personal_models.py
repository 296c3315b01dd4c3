"""Personal models of a fit are scored on the clients' own test rows."""

from copy import deepcopy
from typing import Any

import pandas
import pytest
import torch
from least_squares import regression
from least_squares import rows as regression_rows
from lightning_modules import Lit, rows, trainer
from torch import nn

import fl_lightning as fl


def test_personal_models_are_scored_on_the_clients_own_test_rows() -> None:
    """Those that `per_client` scores; the client of two rows has none."""
    x, y = rows(62).values()
    owner = torch.arange(4).repeat_interleave(torch.tensor([20, 20, 20, 2]))
    given = fl.FederatedData((x, y), clients=owner, test=0.2)
    fit = trainer(finetune_epochs=[1], rounds=1)
    run = fit.fit(nn.Linear(6, 3), given)
    personal = pandas.read_csv(run.path / "personal.csv", index_col="client")
    assert personal["test_samples"].tolist() == [4, 4, 4, 0]
    expected = fit.test(data=given, per_client=True)["test/accuracy"]
    assert personal["accuracy_0"][:3].tolist() == expected.tolist()
    assert personal["accuracy_0"].isna().tolist() == [False, False, False, True]
    last = fit.history.iloc[-1]
    assert last["personal/accuracy_0"] == pytest.approx(expected.mean())


def test_votes_for_classes_are_refused_where_targets_are_numbers() -> None:
    given, module = regression(test=0.3), nn.Linear(1, 1).double()
    before = deepcopy(module.state_dict())
    fit = trainer("knn_per", loss="mse", metrics=["mae"], finetune_epochs=[1])
    with pytest.raises(fl.UserError, match=r"predict classes.* finetune_epochs"):
        fit.fit(module, given)
    assert module.state_dict() == before


def test_a_step_that_does_not_call_forward_has_no_scores_of_classes() -> None:
    class Inner(Lit):
        def training_step(self, batch: Any, index: int) -> Any:
            return nn.functional.cross_entropy(self.outer(self.inner(batch["x"])), batch["label"])

    given = fl.FederatedData(rows(40), clients=[0, 1] * 20, test=0.2)
    with pytest.raises(fl.UserError, match=r"of Inner .* call self\(x\)"):
        trainer(finetune_epochs=[1], rounds=1).fit(Inner(norm=False), given)


def test_a_step_may_call_forward_as_a_method() -> None:
    class Method(Lit):
        def training_step(self, batch: Any, index: int) -> Any:
            return nn.functional.cross_entropy(self.forward(batch["x"]), batch["label"])

    given = fl.FederatedData(rows(40), clients=[0, 1] * 20, test=0.2)
    scores = list[Any]()
    for module in (Method(), Lit()):
        fit = trainer("fedntd", rounds=1, callbacks=[fl.callbacks.PersonalScores])
        fit.fit(module, given)
        scores += [fit.history["own/accuracy"].item(), module.outer.weight]
        assert "forward" not in vars(module)
    assert scores[0] == scores[2]
    assert scores[1].equal(scores[3])


def test_the_worst_tenth_has_the_least_accuracy_where_a_step_logs_a_loss_first() -> None:
    given, module = fl.FederatedData(rows(80), clients=[0, 1, 2, 3] * 20, test=0.4), Lit()
    fit = trainer(rounds=1, callbacks=[fl.callbacks.PersonalScores])
    fit.fit(module, given)
    right = module.eval()(given.test["x"]).argmax(1) == given.test["label"]
    accuracies = [right[own].double().mean().item() for own in given.parts["test"]]
    assert len({*accuracies}) > 1
    assert fit.history["own/accuracy_worst10"].item() == pytest.approx(min(accuracies))


@pytest.mark.parametrize("algorithm", ["fedavg", "fedbabu", "ditto"])
def test_personal_models_of_numbers_are_scored_by_the_first_metric(
    algorithm: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Full batches: an epoch is a step. The client of two rows has no test row."""
    x, y, _ = regression_rows()
    owner = (torch.arange(len(x)) % 9).clamp(max=3)
    owner[:2] = 4
    given = fl.FederatedData((x, y), clients=owner, test=0.2)
    options: dict[str, Any] = {"batch_size": 999, "lr": 0.1, "participation": 1.0, "rounds": 2}
    fit = trainer(algorithm, loss="mse", metrics=["mae"], finetune_epochs=[1], **options)
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(1, 3), nn.Tanh(), nn.Linear(3, 1)).double()
    run = fit.fit(module, given)
    personal = pandas.read_csv(run.path / "personal.csv", index_col="client")
    last = fit.history.iloc[-1]
    assert personal["mae_0"].isna().tolist() == [False] * 4 + [True]
    assert last["personal/mae_1"] == pytest.approx(personal["mae_1"].mean())
    assert last["personal/std_1"] == pytest.approx(personal["mae_1"].std(ddof=0))
    assert "personal models, mae, mean" in capsys.readouterr().out
    before = fit.test(data=given)
    assert before["test/mae"] == pytest.approx(last["test/mae"])  # the module is the global one
    if algorithm != "ditto":  # which has a model of its own
        own = [deepcopy(module) for _ in range(4)]
        for client, model in enumerate(own):
            rows = given.partition[client]
            (model(given.train[0][rows])[:, 0] - given.train[1][rows]).square().mean().backward()
            with torch.no_grad():
                for p in model.parameters():
                    p -= 0.1 * p.grad
        errors = [
            (model(given.test[0][rows])[:, 0] - given.test[1][rows]).abs().mean().item()
            for model, rows in zip(own, given.parts["test"], strict=False)
        ]
        assert personal["mae_1"][:4].tolist() == pytest.approx(errors)
