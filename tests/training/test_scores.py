"""What is scored, and which model is the best."""

import math
from copy import deepcopy
from types import SimpleNamespace
from typing import Any

import pandas
import pytest
import torch
import torchmetrics
from fit_program import WithMetric
from least_squares import rows as regression_rows
from lightning import LightningModule
from lightning_modules import Lit, data, distance, rows, trainer
from torch import nn

import fl_lightning as fl
from fl_lightning.__main__ import main
from fl_lightning.callbacks import ClientScores, EarlyStopping


def regression(**options: Any) -> fl.FederatedData:
    x, y, owners = regression_rows()
    return fl.FederatedData((x, y), clients=owners, **options)


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


def test_scores_of_a_task_without_classes_are_those_of_torch() -> None:
    given, module = regression(test=0.3), nn.Linear(1, 1).double()
    fit = trainer(loss="mse", metrics=["rmse", "r2"])
    fit.fit(module, given)
    x, y = given.test
    error = (module(x)[:, 0] - y).square().mean().item()
    last = fit.history.iloc[-1]
    assert last["test/loss"] == pytest.approx(error)
    assert last["test/rmse"] == pytest.approx(error**0.5)
    assert last["test/r2"] == pytest.approx(1 - error / y.var(correction=0).item())


class Epochs(Lit):
    """Logs the round in training and in validation."""

    def training_step(self, batch: Any, index: int) -> Any:
        loss = super().training_step(batch, index)
        self.log("round_trained", self.current_epoch + 0 * loss)
        return loss

    def validation_step(self, batch: Any, index: int) -> None:
        self.log("round_validated", float(self.current_epoch))


def test_validation_sees_the_epoch_of_the_steps_before_it() -> None:
    fit = trainer(rounds=3)
    fit.fit(Epochs(), data(validation=rows(9)))
    assert fit.history["round_trained"].tolist() == [0, 1, 2]
    assert fit.history["round_validated"].tolist() == [0, 1, 2]


def test_a_logged_score_ends_a_fit_early() -> None:
    stop = EarlyStopping(monitor="val_loss", patience=2, min_delta=100.0)
    run = trainer(rounds=9, callbacks=[stop]).fit(Lit(), data(validation=rows(9)))
    assert run.ended == {"round": 3, "reason": "a callback"}


def test_a_score_that_nobody_logs_is_found_out() -> None:
    stop = EarlyStopping(monitor="val/acc", patience=2)
    with pytest.raises(fl.UserError, match=r"'val/acc'.*val_loss"):
        trainer(rounds=9, callbacks=[stop]).fit(Lit(), data(validation=rows(9)))


@pytest.mark.parametrize("columns", [(), (1,)], ids=["row", "column"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.int64, torch.bool], ids=str)
def test_scores_of_binary_targets(dtype: torch.dtype, columns: tuple[int, ...]) -> None:
    """One score a row, with its loss."""
    x, _, owners = regression_rows()
    y = (x[:, 0] > 0.3).to(dtype).reshape(-1, *columns)
    given = fl.FederatedData((x, y), clients=owners, test=0.3)
    torch.manual_seed(0)
    module = nn.Linear(1, 1).double()
    fit = trainer(loss="binary_cross_entropy", metrics=["accuracy", "auroc", "f1"], rounds=5)
    fit.fit(module, given)
    x, y = given.test
    said, true = module(x)[:, 0] > 0, y.flatten() == 1
    right = (said == true).double().mean().item()
    assert fit.history["test/accuracy"].iloc[-1] == pytest.approx(right)
    assert 0.5 < right < 1
    f1 = 2 * (said & true).sum() / (said.sum() + true.sum())
    assert fit.history["test/f1"].iloc[-1] == pytest.approx(f1.item())


def test_targets_of_numbers_may_be_whole() -> None:
    x, y, owners = regression_rows()
    given = fl.FederatedData((x, y.round().long()), clients=owners, test=0.3)
    module = nn.Linear(1, 1).double()
    found = trainer(loss="mse", metrics=["rmse", "mae", "r2"]).test(module, given)
    x, y = given.test
    off = module(x)[:, 0] - y
    assert found["test/rmse"] == pytest.approx(off.square().mean().sqrt().item())
    assert found["test/mae"] == pytest.approx(off.abs().mean().item())
    explained = 1 - (off.square().mean() / y.double().var(correction=0)).item()
    assert found["test/r2"] == pytest.approx(explained, abs=1e-6)  # torchmetrics adds in float32


def test_several_labels_a_row_are_counted_one_by_one() -> None:
    x, _, owners = regression_rows()
    y = (x > torch.tensor([0.2, 0.8])).long()
    given = fl.FederatedData((x, y), clients=owners, test=0.3)
    module = nn.Linear(1, 2).double()
    found = trainer(loss="binary_cross_entropy", metrics=["accuracy"]).test(module, given)
    x, y = given.test
    right = ((module(x) > 0) == (y == 1)).double().mean().item()
    assert found["test/accuracy"] == right  # in double precision


def test_one_score_tells_two_named_classes_apart() -> None:
    x, _, owners = regression_rows()
    y = (x[:, 0] > 0.3).long()
    given = fl.FederatedData((x, y), clients=owners, test=0.3, classes=("low", "high"))
    fit = trainer(loss="binary_cross_entropy", rounds=5, callbacks=[ClientScores])
    module = nn.Linear(1, 1).double()
    fit.fit(module, given)
    x, y = given.test
    right = (module(x)[:, 0] > 0).long() == y
    assert fit.history["test/accuracy"].iloc[-1] == pytest.approx(right.double().mean().item())
    each = fit.test(data=given, per_client=True)["test/accuracy"]
    for client, found in enumerate(each):
        own = right[given.parts["test"][client]]
        assert found == pytest.approx(own.double().mean().item())


@pytest.mark.parametrize("weighted", [False, True])
def test_a_cross_entropy_of_torch_has_classes(weighted: bool) -> None:
    given, weight = data(test=0.3), torch.tensor([1.0, 2.0, 3.0])
    given = fl.FederatedData(
        (given.train["x"], given.train["label"]), clients=given.partition, test=0.3
    )
    loss = nn.CrossEntropyLoss(weight) if weighted else nn.functional.cross_entropy
    fit, module = trainer(loss=loss, metrics=["f1"]), nn.Linear(6, 3)
    fit.fit(module, given)
    x, y = given.test
    right = (module(x).argmax(1) == y).double().mean().item()
    assert fit.history["test/accuracy"].iloc[-1] == pytest.approx(right)
    f1 = torchmetrics.functional.f1_score(
        module(x), y, "multiclass", num_classes=3, average="macro"
    )
    assert fit.history["test/f1"].iloc[-1] == pytest.approx(f1.item())


def test_classes_of_an_own_loss_are_named() -> None:
    def loss(out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(out, y)

    x, y = rows(60).values()
    fit = trainer(loss=loss, metrics=["f1"])
    with pytest.raises(fl.UserError, match=r"FederatedData\(classes="):
        fit.fit(nn.Linear(6, 3), fl.FederatedData((x, y), clients=[0] * 60, test=0.5))
    given = fl.FederatedData((x, y), clients=[0] * 60, test=0.5, classes="abc")
    assert "test/f1" in fit.fit(nn.Linear(6, 3), given).scalars


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


@pytest.mark.parametrize(("highest", "named"), [(9, True), (2**18, False)])
def test_numbers_above_those_of_a_vocabulary_are_no_classes(
    highest: int, named: bool, capsys: Any
) -> None:
    x, _, owners = regression_rows()
    y = torch.zeros(len(x), dtype=torch.int64)
    y[0] = highest
    trainer(lr=0.1, local_steps=1).fit(TwoTargets(), fl.FederatedData((x, y), clients=owners))
    assert ("number of classes" in capsys.readouterr().out) == named


class TwoTargets(LightningModule):
    """A line for each of two targets."""

    def __init__(self) -> None:
        super().__init__()
        self.lines = nn.Linear(1, 2).double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.lines(x)

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        x, y = batch
        return loss_of_two(self(x), y)

    def test_step(self, batch: Any, index: int) -> None:
        self.log("test/loss", self.training_step(batch, index))

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def loss_of_two(out: torch.Tensor, y: Any) -> torch.Tensor:
    both = [y["one"], y["two"]] if isinstance(y, dict) else [y, y]
    return nn.functional.mse_loss(out, torch.stack(both, 1).to(out))


@pytest.mark.parametrize("module", [TwoTargets(), nn.Linear(1, 2).double()], ids=["lit", "plain"])
def test_a_row_may_have_several_targets(module: nn.Module) -> None:
    x, y, owners = regression_rows()
    given = fl.FederatedData((x, {"one": y, "two": -y}), clients=owners, test=0.3)
    lit = isinstance(module, LightningModule)
    fit = trainer() if lit else trainer(loss=loss_of_two, lr=0.1)
    fit.fit(module, given)
    x, y = given.test
    found = fit.history["test/loss"].iloc[-1]
    assert found == pytest.approx(loss_of_two(module(x), y).item())
    assert "test/accuracy" not in fit.history
    if not lit:
        with pytest.raises(fl.UserError, match="cross_entropy cannot compare"):
            trainer(lr=0.1).fit(module, given)


class Tagger(nn.Module):
    """A class for each token."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 3)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.table(tokens)


@pytest.mark.parametrize("batch_size", [1, 5, 60])
def test_the_loss_of_padded_rows_is_the_mean_over_their_targets(batch_size: int) -> None:
    """In batches of any size, some of which are padding alone."""
    g = torch.Generator().manual_seed(0)
    tokens = torch.randint(7, (60, 6), generator=g)
    length = torch.randint(7, (60, 1), generator=g)
    y = tokens.div(3, rounding_mode="floor").masked_fill(torch.arange(6) >= length, -100)
    assert (length == 0).any()
    given = fl.FederatedData((tokens, y), clients=torch.arange(60) % 3, test=0.5)
    fit, module = trainer(metrics=["perplexity"], batch_size=batch_size), Tagger()
    fit.fit(module, given)
    x, y = given.test
    loss = nn.functional.cross_entropy(module(x).flatten(0, 1), y.flatten()).item()
    for found in (fit.history.iloc[-1], fit.test(data=given)):
        assert found["test/loss"] == pytest.approx(loss)
        assert found["test/perplexity"] == pytest.approx(math.exp(loss))
    each = fit.test(data=given, per_client=True)["test/loss"]
    for client, found in enumerate(each):
        own = given.parts["test"][client]
        loss = nn.functional.cross_entropy(module(x[own]).flatten(0, 1), y[own].flatten())
        assert found == pytest.approx(loss.item())


def test_numbers_above_one_are_no_binary_targets() -> None:
    given = fl.FederatedData((torch.randn(60, 2), torch.arange(60) % 3), clients=[0] * 60, test=0.5)
    fit = trainer(loss="binary_cross_entropy", metrics=["accuracy"], batch_size=30)
    with pytest.raises(fl.UserError, match=r"accuracy.*not classes"):
        fit.fit(nn.Linear(2, 1), given)


class Reduced(Lit):
    """Logs with the options of `self.log`."""

    def test_step(self, batch: dict[str, torch.Tensor], index: int) -> None:
        x, y = batch["x"], batch["label"]
        self.log("count", float(len(x)), reduce_fx="sum")
        self.log_dict({"most": x.max(), "most again": x.max()}, reduce_fx=torch.max)
        self.log("least", x.min(), reduce_fx="min")
        twos = y == 2
        self.log("of twos", x[twos].sum() / twos.sum().clamp(min=1), batch_size=int(twos.sum()))


def test_scores_are_reduced_as_they_are_logged() -> None:
    given = data(test=rows(23))
    found, x = trainer().test(Reduced(), given), given.test["x"]
    twos = x[given.test["label"] == 2]
    assert found["count"] == 23
    assert found["most"] == found["most again"] == x.max().item()
    assert found["least"] == x.min().item()
    assert found["of twos"] == pytest.approx(twos.sum().item() / len(twos))


def test_a_run_gives_its_weights_to_a_module() -> None:
    module = Lit()
    run = trainer().fit(module, data())
    assert distance(run.model(Lit()), module) == 0
    assert not run.model(Lit()).training
    with pytest.raises(fl.UserError, match="does not fit the model Linear"):
        run.model(nn.Linear(2, 2))
    with pytest.raises(fl.UserError, match=r"run\.model\(module\)"):
        run.model()


def test_runs_of_lightning_modules_are_compared_by_what_they_log(capsys: Any) -> None:
    paths = [trainer(a).fit(Lit(), data(validation=rows(9))).path for a in ("fedavg", "fedprox")]
    capsys.readouterr()
    main(["compare", *map(str, paths), "--score", "val_loss"])
    assert "fedprox" in capsys.readouterr().out


def test_runs_are_compared_by_their_first_score(capsys: Any) -> None:
    """In its own direction, which the run records."""
    for metrics, name, larger in (({"far": Far()}, "far", True), ((), "loss", False)):
        runs = [
            trainer(loss="mse", metrics=metrics, rounds=rounds).fit(
                nn.Linear(1, 1).double(), regression(test=0.3)
            )
            for rounds in (1, 3)
        ]
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
