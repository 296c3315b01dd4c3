"""Targets of all kinds: classes, several labels, numbers, tokens, and several targets a row."""

import math
from typing import Any

import pytest
import torch
import torchmetrics
from least_squares import rows as regression_rows
from lightning import LightningModule
from lightning_modules import owners, rows, trainer
from torch import nn

import fl_lightning as fl
from fl_lightning.callbacks import ClientScores


@pytest.mark.parametrize("columns", [(), (1,)], ids=["row", "column"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.int64, torch.bool], ids=str)
def test_scores_of_binary_targets(dtype: torch.dtype, columns: tuple[int, ...]) -> None:
    """One score a row, with its loss."""
    x, _, owners = regression_rows()
    y = (x[:, 0] > 0.3).to(dtype).reshape(-1, *columns)
    given = fl.FederatedData((x, y), clients=owners, test=0.3)
    torch.manual_seed(0)
    module = nn.Linear(1, 1).double()
    fit = trainer(loss="binary_cross_entropy", metrics=["accuracy", "auroc", "f1"], lr=0.3)
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
    assert found["test/r2"] == pytest.approx(explained)


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
    options: dict[str, Any] = {"finetune_epochs": [1], "callbacks": [ClientScores]}
    fit = trainer(loss="binary_cross_entropy", lr=0.3, **options)
    module = nn.Sequential(nn.Linear(1, 1), nn.Flatten(0)).double()
    fit.fit(module, given)
    x, y = given.test
    right = (module(x) > 0).long() == y
    assert fit.history["test/accuracy"].iloc[-1] == pytest.approx(right.double().mean().item())
    each = fit.test(data=given, per_client=True)["test/accuracy"]
    assert fit.history["personal/accuracy_0"].iloc[-1] == pytest.approx(each.mean())
    for client, found in enumerate(each):
        own = right[given.parts["test"][client]]
        assert found == pytest.approx(own.double().mean().item())


@pytest.mark.parametrize("weighted", [False, True])
def test_a_cross_entropy_of_torch_has_classes(weighted: bool) -> None:
    weight = torch.tensor([1.0, 2.0, 3.0])
    given = fl.FederatedData(tuple(rows().values()), clients=owners(), test=0.3)
    loss = nn.CrossEntropyLoss(weight) if weighted else nn.functional.cross_entropy
    fit, module = trainer(loss=loss, metrics=["f1"]), nn.Linear(6, 3)
    fit.fit(module, given)
    x, y = given.test
    right = (module(x).argmax(1) == y).double().mean().item()
    assert fit.history["test/accuracy"].iloc[-1] == pytest.approx(right)
    options: Any = {"num_classes": 3, "average": "macro"}
    f1 = torchmetrics.functional.f1_score(module(x), y, "multiclass", **options)
    assert fit.history["test/f1"].iloc[-1] == pytest.approx(f1.item())


@pytest.mark.parametrize("left_out", [0, -1])
def test_scores_are_of_the_classes_that_the_loss_counts(left_out: int) -> None:
    x, y = rows(80).values()
    y = torch.where(y == 0, left_out, y)
    given = fl.FederatedData((x, y), clients=[0, 1] * 40, test=0.4)
    torch.manual_seed(0)
    module = nn.Linear(6, 3)
    loss, own = nn.CrossEntropyLoss(ignore_index=left_out), [0] if left_out == 0 else None
    fit = trainer(loss=loss, metrics=["accuracy"], rounds=1, finetune_epochs=own)
    fit.fit(module, given)
    x, y = given.test
    right = (module(x).argmax(1) == y).double()
    of_clients = [right[k][y[k] != left_out].mean().item() for k in given.parts["test"]]
    last = fit.history.iloc[-1]
    assert last["test/accuracy"] == pytest.approx(right[y != left_out].mean().item())
    each = fit.test(data=given, per_client=True)
    assert [*each["test/accuracy"]] == pytest.approx(of_clients)
    if own:
        assert last["personal/accuracy_0"] == pytest.approx(sum(of_clients) / 2)


def test_classes_of_an_own_loss_are_named() -> None:
    def loss(out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(out, y)

    x, y = rows(60).values()
    fit = trainer(loss=loss, metrics=["f1"])
    with pytest.raises(fl.UserError, match=r"FederatedData\(classes="):
        fit.fit(nn.Linear(6, 3), fl.FederatedData((x, y), clients=[0] * 60, test=0.5))
    given = fl.FederatedData((x, y), clients=[0] * 60, test=0.5, classes="abc")
    assert "test/f1" in fit.fit(nn.Linear(6, 3), given).scalars


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


@pytest.mark.parametrize("batch_size", [1, 5, 60])
def test_the_loss_of_padded_rows_is_the_mean_over_their_targets(batch_size: int) -> None:
    """Of a class for each token, in batches of any size, some of which are padding alone."""
    g = torch.Generator().manual_seed(0)
    tokens = torch.randint(7, (60, 6), generator=g)
    length = torch.randint(7, (60, 1), generator=g)
    y = tokens.div(3, rounding_mode="floor").masked_fill(torch.arange(6) >= length, -100)
    assert (length == 0).any()
    given = fl.FederatedData((tokens, y), clients=torch.arange(60) % 3, test=0.5)
    fit, module = trainer(metrics=["perplexity"], batch_size=batch_size), nn.Embedding(7, 3)
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


def test_numbers_above_one_are_no_classes_of_one_score() -> None:
    given = fl.FederatedData((torch.randn(60, 2), torch.arange(60) % 3), clients=[0] * 60, test=0.5)
    fit = trainer(loss="mse", metrics=["accuracy"], batch_size=30)
    with pytest.raises(fl.UserError, match=r"accuracy.*not classes"):
        fit.fit(nn.Linear(2, 1), given)


@pytest.mark.parametrize("wrong", [-1, 3])
@pytest.mark.parametrize("shape", [(), (2,)], ids=["class", "tokens"])
def test_targets_that_are_no_classes_are_refused_before_the_first_round(
    wrong: int, shape: tuple[int, ...]
) -> None:
    y = torch.zeros(8, *shape, dtype=torch.int64)
    y[0], y[5] = -100, wrong
    given = fl.FederatedData((torch.randn(8, *shape, 2), y), clients=[0, 1] * 4)
    with pytest.raises(fl.UserError, match=f"3 outputs, but a target is {wrong}"):
        trainer().fit(nn.Linear(2, 3), given)


@pytest.mark.parametrize("classes", [(), ("low", "high")], ids=["unnamed", "named"])
@pytest.mark.parametrize("loss", ["mse", lambda p, y: nn.BCELoss()(p, y.to(p))])
def test_a_probability_above_one_half_means_class_1(loss: Any, classes: tuple[str, ...]) -> None:
    x, _, owners = regression_rows()
    y = (x[:, 0] > 0.3).long()
    given = fl.FederatedData((x, y), clients=owners, test=0.3, classes=classes)
    module = nn.Sequential(nn.Linear(1, 1), nn.Sigmoid(), nn.Flatten(0)).double()
    torch.manual_seed(0)
    found = trainer(loss=loss, metrics=["accuracy", "f1", "mse"]).test(module, given)
    x, y = given.test
    probability = module(x)
    said = probability > 0.5
    assert found["test/accuracy"] == pytest.approx((said == y).double().mean().item())
    f1 = 2 * (said & (y == 1)).sum() / (said.sum() + y.sum())
    assert found["test/f1"] == pytest.approx(f1.item(), nan_ok=True)
    assert found["test/mse"] == pytest.approx((probability - y).square().mean().item())


def test_a_segmentation_has_an_accuracy_of_the_pixels_that_count() -> None:
    """PyTorch's cross entropy has classes second, also where there are as many pixels."""
    g = torch.Generator().manual_seed(0)
    images, masks = torch.rand(20, 2, 3, 3, generator=g), torch.randint(3, (20, 3, 3), generator=g)
    given = fl.FederatedData((images, masks), clients=torch.arange(20) % 2, test=0.5)
    loss, module = nn.CrossEntropyLoss(ignore_index=0), nn.Conv2d(2, 3, 1)
    jaccard = torchmetrics.JaccardIndex("multiclass", num_classes=3, ignore_index=0)
    found = trainer(loss=loss, metrics=["accuracy"]).test(module, given)
    found |= trainer(loss=loss, metrics={"iou": jaccard}).test(module, given)
    x, y = given.test
    right = (module(x).argmax(1) == y)[y != 0].double().mean().item()
    assert found["test/accuracy"] == pytest.approx(right)
    iou = torchmetrics.functional.jaccard_index(module(x), y, "multiclass", 0.5, 3, ignore_index=0)
    assert found["test/iou"] == pytest.approx(iou.item())


def test_a_metric_may_take_all_that_a_module_returns() -> None:
    class Share(torchmetrics.MeanMetric):
        def update(self, out: Any, y: torch.Tensor) -> None:  # type: ignore[override]
            super().update((out["line"] > y).double())

    class Named(nn.Linear):
        def forward(self, x: torch.Tensor) -> Any:
            return {"line": super().forward(x)[:, 0]}

    x, y, owners = regression_rows()
    given, module = fl.FederatedData((x, y), clients=owners, test=0.3), Named(1, 1).double()
    fit = trainer(loss=lambda out, y: (out["line"] - y).square().mean(), metrics={"s": Share()})
    x, y = given.test
    above = (module(x)["line"] > y).double().mean().item()
    assert fit.test(module, given)["test/s"] == pytest.approx(above)
