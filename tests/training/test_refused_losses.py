"""Losses, metrics and plain models that do not fit the data are refused in one sentence."""

from collections.abc import Callable
from functools import partial
from typing import Any
from warnings import catch_warnings, simplefilter

import pytest
import torch
import torchmetrics
from lightning_modules import owners, refused, trainer
from torch import Tensor, nn
from torch.nn import functional as F
from torchmetrics.classification import MulticlassAccuracy

import fl_lightning as fl

X, Y = torch.randn(41, 5), torch.randn(41)
COUNTS = torch.arange(41) % 3


class Squeezed(nn.Linear):
    """Loses the dimension of a batch of one sample."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).squeeze()


def numbers(**options: Any) -> fl.FederatedData:
    return fl.FederatedData((X, Y), clients=owners(), **options)


class Weighted(nn.Module):
    """A loss with a weight that is learned."""

    def __init__(self) -> None:
        super().__init__()
        self.log_variance = nn.Parameter(torch.zeros(()))

    def forward(self, out: Tensor, y: Tensor) -> Tensor:
        return F.mse_loss(out[:, 0], y) / self.log_variance.exp() + self.log_variance


class WithPhase(nn.Linear):
    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        self.phase = nn.Parameter(torch.zeros((), dtype=torch.complex64))


class TwoOutputs(nn.Linear):
    def forward(self, x: Tensor) -> Any:
        return super().forward(x), x


class Words(nn.Linear):
    def forward(self, x: Tensor) -> Any:
        return "hello"


class TwoHeads(nn.Linear):
    head = "left"


net = partial(nn.Linear, 5, 1)

CALLS: dict[str, tuple[Callable[[], Any], tuple[str, ...]]] = {
    "loss": (lambda: trainer(loss="msee").fit(net(), numbers()), ("mse",)),
    "no loss": (lambda: trainer(loss=3).fit(net(), numbers()), ("3",)),
    "a sum": (lambda: trainer(loss=nn.MSELoss(reduction="sum")).fit(net(), numbers()), ("'sum'",)),
    "a sum of a partial": (
        lambda: trainer(loss=partial(F.mse_loss, reduction="sum")).fit(net(), numbers()),
        ("'sum'",),
    ),
    "each output with each target": (
        lambda: trainer(loss=lambda out, y: (out - y).square().mean()).fit(
            nn.Linear(5, 1), numbers()
        ),
        ("(2, 1)", "(2,)"),
    ),
    "each output with each target, which begin alike": (
        lambda: trainer(loss=nn.PoissonNLLLoss()).fit(
            nn.Linear(5, 1), fl.FederatedData((X, torch.arange(41.0) // 9), clients=owners())
        ),
        ("(2, 1)", "(2,)"),
    ),
    "weights of a loss": (
        lambda: trainer(loss=Weighted()).fit(net(), numbers()),
        ("Weighted", "weights of its own"),
    ),
    "metric": (lambda: trainer(loss="mse", metrics=["r3"]).fit(net(), numbers()), ("r2",)),
    "a function as a metric": (
        lambda: trainer(loss="mse", metrics={"gap": F.l1_loss}).fit(net(), numbers(test=0.2)),
        ("gap", "torchmetrics"),
    ),
    "a list of metrics": (
        lambda: trainer(loss="mse", metrics=[torchmetrics.R2Score()]).fit(net(), numbers()),
        ("R2Score()", "metrics={"),
    ),
    "metrics of nothing": (
        lambda: trainer(loss="mse", metrics=["r2"]).fit(net(), numbers()),
        ("test=0.2",),
    ),
    "metric of each class": (
        lambda: trainer(metrics={"each": MulticlassAccuracy(3, average=None)}).fit(
            nn.Linear(5, 3), fl.FederatedData((X, COUNTS), clients=owners(), test=0.2)
        ),
        ("metric of each", "test part"),
    ),
    "metric of classes": (
        lambda: trainer(loss="mse", metrics=["auroc"]).fit(net(), numbers(test=0.2)),
        ("auroc", "not classes"),
    ),
    **{
        f"{kind} for two classes": (
            lambda loss=loss, y=y: trainer(loss=loss).fit(
                net(), fl.FederatedData((X, y[:, None]), clients=owners())
            ),
            (found, "from 0 to 1"),
        )
        for kind, loss, y, found in (
            ("numbers", "binary_cross_entropy", -Y.abs(), "is -"),
            ("three classes", "binary_cross_entropy", COUNTS, "is 2"),
            ("ignored classes", nn.BCEWithLogitsLoss(), COUNTS - 100.0, "is -100"),
        )
    },
    "numbers for two classes to test": (
        lambda: trainer(loss="binary_cross_entropy").fit(
            net(), fl.FederatedData((X, Y.sigmoid()), (X, -Y.abs()), clients=owners())
        ),
        ("is -", "from 0 to 1"),
    ),
    "floats for classes": (lambda: trainer().fit(net(), numbers()), ("cross_entropy", "float32")),
    "targets": (
        lambda: trainer(loss="mse").fit(nn.Linear(5, 3), numbers()),
        ("mse", "(2,)", "[2, 3]"),
    ),
    "classes second": (
        lambda: trainer().fit(
            nn.Conv1d(1, 4, 1), fl.FederatedData((X[:, None], (X > 0).long()), clients=owners())
        ),
        ("classes last", "(2, 4, 5)", "torch.nn.functional.cross_entropy"),
    ),
    "small numbers": (
        lambda: trainer().fit(
            nn.Linear(5, 3), fl.FederatedData((X, COUNTS.byte()), clients=owners())
        ),
        ("torch.uint8", "y.long()"),
    ),
    "no tensor": (lambda: trainer(loss="mse").fit(Words(5, 1), numbers()), ("Words", "str")),
    "no parameters": (lambda: trainer(loss="mse").fit(nn.Identity(), numbers()), ("Identity",)),
    "frozen": (
        lambda: trainer(loss="mse").fit(net().requires_grad_(False), numbers()),
        ("requires_grad",),
    ),
    "a class": (lambda: trainer(loss="mse").fit(nn.Linear, numbers()), ("Module",)),
    "inputs": (lambda: trainer(loss="mse").fit(nn.Linear(4, 1), numbers()), ("Linear", "shape 5")),
    "head": (lambda: trainer(loss="mse").fit(TwoHeads(5, 1), numbers()), ("'left'",)),
    "float16": (
        lambda: trainer(loss="mse").fit(nn.Linear(5, 1, dtype=torch.float16), numbers()),
        ("torch.float16", "float32"),
    ),
    "complex weights": (
        lambda: trainer(loss="mse").fit(WithPhase(5, 1), numbers()),
        ("torch.complex64", "view_as_real"),
    ),
    "data parallel": (
        lambda: trainer(loss="mse").fit(nn.DataParallel(net()), numbers()),
        ("DataParallel", ".module"),
    ),
    "outputs of several parts": (
        lambda: trainer().fit(TwoOutputs(5, 3), fl.FederatedData((X, COUNTS), clients=owners())),
        ("function of the tuple", "TwoOutputs"),
    ),
    "one metric": (lambda: trainer(loss="mse", metrics="r2").fit(net(), numbers()), ("['r2']",)),
    "squeezed": (
        lambda: trainer(batch_size=4).fit(
            Squeezed(5, 3), fl.FederatedData((X, COUNTS), clients=owners())
        ),
        ("one sample", "squeeze(-1)"),
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_losses_metrics_and_models_that_do_not_fit(name: str) -> None:
    call, words = CALLS[name]
    refused(call, *words)


@pytest.mark.parametrize("size", [torch.sum, torch.mean])
def test_a_loss_that_is_a_sum_over_a_batch_is_said(size: Callable[[Tensor], Tensor]) -> None:
    with catch_warnings(record=True) as said:
        simplefilter("always")
        trainer(loss=lambda out, y: size((out[:, 0] - y).square()), lr=0.01).fit(net(), numbers())
    assert any("is a sum" in str(one.message) for one in said) == (size is torch.sum)
