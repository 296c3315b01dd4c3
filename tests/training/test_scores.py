"""What is scored, and which model is the best."""

import math
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
import torchmetrics
from fit_program import WithMetric
from least_squares import regression
from lightning_modules import Lit, data, distance, module, owners, rows, trainer
from torch import nn
from torchmetrics.classification import MulticlassAccuracy

import fl_lightning as fl
from fl_lightning.__main__ import main
from fl_lightning.callbacks import ClientScores
from fl_lightning.callbacks.metrics import METRICS


def test_metrics_rest_in_the_training_step_and_it_is_said_once(capsys: Any) -> None:
    module, given = WithMetric(), data(validation=rows(23))
    fit = trainer(rounds=3)
    fit.fit(module, given)
    said = capsys.readouterr().out
    assert said.count("metrics rest in WithMetric.training_step") == 1
    assert "acc" not in fit.history
    assert "loss_std" in fit.history
    out = module.eval()(given.validation["x"]).argmax(1)
    right = (out == given.validation["label"]).double().mean().item()
    assert fit.history["val_acc"].iloc[-1] == pytest.approx(right)
    assert module.accuracy.update_count == 0


class Collection(Lit):
    """With a collection in both steps, where metrics of equal sums are one until they differ."""

    def __init__(self) -> None:
        super().__init__()
        kinds = {f"top{k}": MulticlassAccuracy(3, k, average="macro") for k in (1, 2)}
        self.metrics = torchmetrics.MetricCollection(kinds)

    def training_step(self, batch: dict[str, torch.Tensor], index: int) -> Any:
        self.metrics.update(self(batch["x"]), batch["label"])
        self.log_dict(self.metrics.compute())
        return super().training_step(batch, index)

    def validation_step(self, batch: dict[str, torch.Tensor], index: int) -> None:
        self.metrics.update(self(batch["x"]), batch["label"])
        self.log_dict({f"val_{name}": one for name, one in self.metrics.items()})


def test_metrics_of_a_collection_rest_too() -> None:
    """They log nothing of training, and remain apart."""
    module, given = Collection(), data(validation=rows(23))
    fit = trainer(rounds=1)
    fit.fit(module, given)
    out, y = module.eval()(given.validation["x"]), given.validation["label"]
    for k in (1, 2):
        right = (out.topk(k).indices == y[:, None]).any(1)
        by_class = torch.stack([right[y == c].double().mean() for c in range(3)])
        assert fit.history[f"val_top{k}"].item() == pytest.approx(by_class.mean().item())
        assert f"top{k}" not in fit.history


class Far(torchmetrics.MeanAbsoluteError):
    """The same, but larger is better."""

    higher_is_better = True


@pytest.mark.parametrize(
    ("metrics", "monitor", "best"),
    [
        ((), "test/loss", min),
        (["r2"], "test/r2", max),
        (["mae", "r2"], "test/mae", min),
        ({"far": Far()}, "test/far", max),
        ({"near": torchmetrics.MeanAbsoluteError()}, "test/near", min),
    ],
    ids=["loss", "r2", "mae", "higher", "lower"],
)
def test_the_first_metric_chooses_the_best_model(
    metrics: Any, monitor: str, best: Any, capsys: Any
) -> None:
    """The rate is so large that scores rise and fall."""
    module = nn.Linear(1, 1).double()
    given = regression(test=0.3)
    fit = trainer(loss="mse", metrics=metrics, rounds=5, lr=0.2, participation=0.1, seed=1)
    run = fit.fit(module, given)
    scores = fit.history.set_index("round")[monitor]
    chosen = run.model(nn.Linear(1, 1).double(), best=True)
    found = trainer(loss="mse", metrics=metrics).test(chosen, given)
    assert found[monitor] == pytest.approx(best(scores), abs=1e-6)
    assert scores.nunique() == 5
    place = {max: scores.idxmax, min: scores.idxmin}[best]()
    assert f"best:    {best(scores):.4g} in round {place}" in capsys.readouterr().out


class MetricFirst(WithMetric):
    def validation_step(self, batch: dict[str, torch.Tensor], index: int) -> None:
        out = self(batch["x"])
        self.accuracy(out, batch["label"])
        self.log("val_acc", self.accuracy)
        self.log("val_loss", nn.functional.cross_entropy(out, batch["label"]))


def test_the_score_that_a_step_logs_first_counts() -> None:
    run = trainer(rounds=2).fit(MetricFirst(), data(validation=rows(23)))
    assert [*run.scores.items()] == [("val_acc", True), ("val_loss", False)]


def test_the_best_round_has_a_number(capsys: Any) -> None:
    def score(self: Any, batch: Any, index: int) -> None:
        self.log("val_acc", [math.nan, 0.5, 0.25][self.current_epoch])

    trainer(rounds=3).fit(module(validation_step=score), data(validation=rows(9)))
    assert "best:    0.5 in round 2" in capsys.readouterr().out


class PreTrainedModel(nn.Module):
    """Scores of 5 tokens, with the loss of its labels as models of transformers have it."""

    def __init__(self, shifted: bool) -> None:
        super().__init__()
        self.table, self.shifted = nn.Embedding(5, 5), shifted
        self.config = SimpleNamespace(is_encoder_decoder=False)

    def ForCausalLMLoss(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        if self.shifted:
            logits, labels = logits[:, :-1], labels[:, 1:]
        return nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())

    def ForMaskedLMLoss(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return self.ForCausalLMLoss(logits, labels)

    @property
    def loss_function(self) -> Any:
        return self.ForCausalLMLoss if self.shifted else self.ForMaskedLMLoss

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> Any:
        logits = self.table(input_ids)
        return SimpleNamespace(logits=logits, loss=self.loss_function(logits, labels))


@pytest.mark.parametrize("shifted", [True, False])
def test_labels_of_a_model_of_transformers_count_once_each(shifted: bool) -> None:
    g = torch.Generator().manual_seed(0)
    tokens = torch.randint(5, (24, 6), generator=g)
    labels = tokens.clone()
    labels[:4] = -100  # a batch without a label
    labels[4:11, 2:] = labels[16:, :3] = -100
    given = {"input_ids": tokens, "labels": labels}
    module = PreTrainedModel(shifted)
    fit = trainer(lr=0.1, local_steps=1, batch_size=4)
    fit.fit(module, fl.FederatedData(given, test=given, clients=torch.arange(24) % 4))
    assert fit.history["test/loss"].iloc[-1] == pytest.approx(module(**given).loss.item())


def test_peft_around_a_plain_module_takes_the_loss_of_the_task() -> None:
    class PeftModel(nn.Sequential):
        def get_base_model(self) -> nn.Module:
            return self[0]

    module, given = PeftModel(nn.Linear(6, 3)), data(test=0.5)
    fit = trainer(lr=0.1, local_steps=1)
    fit.fit(module, given)
    expected = nn.functional.cross_entropy(module(given.test["x"]), given.test["label"])
    assert fit.history["test/loss"].iloc[-1] == pytest.approx(expected.item())


def test_clients_are_scored_where_no_target_is_named() -> None:
    class Bare(Lit):
        def training_step(self, batch: dict[str, torch.Tensor], index: int) -> Any:
            return super().training_step({"x": batch["x"], "label": batch["kind"]}, index)

        def test_step(self, batch: dict[str, torch.Tensor], index: int) -> None:
            super().test_step({"x": batch["x"], "label": batch["kind"]}, index)

    held = {"x": rows()["x"], "kind": rows()["label"]}
    given = fl.FederatedData(held, clients=owners(), test=0.3)
    fit = trainer(callbacks=[ClientScores])
    fit.fit(Bare(), given)
    each = fit.test(data=given, per_client=True)
    assert len(each) == 4
    assert fit.history["clients/test_loss"].iloc[-1] == pytest.approx(each["test_loss"].mean())


def test_a_run_gives_its_weights_to_a_module() -> None:
    class Masked(Lit):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mask", torch.ones(6), persistent=False)

    module = Masked()
    run = trainer().fit(module, data())
    assert distance(run.model(Masked()), module) == 0
    assert not run.model(Masked()).training
    with pytest.raises(fl.UserError, match="does not fit the model Linear"):
        run.model(nn.Linear(2, 2))
    with pytest.raises(fl.UserError, match=r"run\.model\(module\)"):
        run.model()


def test_the_weights_of_a_compiled_module_have_its_own_names() -> None:
    """So that the module loads them, compiled or not, as in Lightning."""
    nets = [nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3)) for _ in range(2)]
    nets[0][0].bias.requires_grad_(False)
    compiled = [torch.compile(net, backend="eager") for net in nets]
    given = rows()
    labeled = fl.FederatedData((given["x"], given["label"]), clients=owners(), test=0.2)
    run = trainer(lr=0.1).fit(compiled[0], labeled)
    for net in (nets[1], compiled[1]):
        nets[1][0].bias.data.copy_(nets[0][0].bias)
        for chosen in ({}, {"round": 2}):
            nets[1][1].reset_running_stats()
            run.model(net, **chosen)
            assert distance(nets[1], nets[0]) == 0


def test_a_run_that_is_scored_on_nothing_displays_its_loss() -> None:
    run = trainer(rounds=1).fit(Lit(), data())
    assert "<th>train/loss</th>" in run._repr_html_()


def test_a_run_names_the_scheme_of_its_clients() -> None:
    """So that no comparison averages over it."""
    given = data(clients=fl.partitions.iid(clients=2, stratified=False))
    config = trainer(rounds=1).fit(Lit(), given).config
    found = config["partition"], config["partition.stratified"], config["clients"]
    assert found == ("iid", False, 2)


def test_runs_are_compared_by_their_first_score(capsys: Any) -> None:
    """In its own direction, which the run records."""
    for metrics, name, larger in (({"far": Far()}, "far", True), ((), "loss", False)):
        fits = [trainer(loss="mse", metrics=metrics, rounds=rounds) for rounds in (1, 3)]
        runs = [fit.fit(nn.Linear(1, 1).double(), regression(test=0.3)) for fit in fits]
        assert next(iter(runs[0].scores.items())) == (f"test/{name}", larger)
        capsys.readouterr()
        main(["compare", *(str(run.path) for run in runs), "--rows", "rounds", "--format", "csv"])
        assert f'"last 10, test/{name}",' in capsys.readouterr().out


def test_the_worst_clients_are_those_of_the_metrics_direction(capsys: Any) -> None:
    given, metrics = regression(test=0.3), {"far": Far(), "near": torchmetrics.MeanAbsoluteError()}
    fit = trainer(loss="mse", metrics=metrics, callbacks=[ClientScores])
    fit.fit(nn.Linear(1, 1).double(), given)
    each, last = fit.test(data=given, per_client=True), fit.history.iloc[-1]
    worst = math.ceil(len(each) / 10)
    assert last["clients/far_worst10"] == pytest.approx(each["test/far"].nsmallest(worst).mean())
    assert last["clients/near_worst10"] == pytest.approx(each["test/near"].nlargest(worst).mean())
    assert fit.run is not None
    main(["analyze", "clients", str(fit.run.path), "--metric", "far"])
    assert f"{each['test/far'].nsmallest(worst).mean():.2f}" in capsys.readouterr().out


def test_metrics_are_made_once_for_all_clients(monkeypatch: Any) -> None:
    """To make one takes longer than to score a small client."""
    made = Mock(side_effect=METRICS["mae"])
    monkeypatch.setitem(METRICS, "mae", made)
    fit, module = trainer(loss="mse", metrics=["mae"]), nn.Linear(1, 1).double()
    each = fit.test(module, regression(test=0.3), per_client=True)["test/mae"]
    assert made.call_count == 2  # also as the names are read
    assert each.nunique() == len(each) > 1


def test_a_metric_that_has_seen_other_samples_starts_anew() -> None:
    """As after an evaluation that was interrupted."""
    metric = torchmetrics.MeanAbsoluteError()
    fit, given = trainer(loss="mse", metrics={"mae": metric}), regression(test=0.3)
    for score in (
        lambda: fit.fit(nn.Linear(1, 1), given).metrics["test/mae"],
        lambda: [*fit.test(data=given).values()],
    ):
        metric.update(torch.tensor([1e6]), torch.tensor([0.0]))
        assert max(score()) < 1e3
