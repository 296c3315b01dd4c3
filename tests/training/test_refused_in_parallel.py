"""What parallel clients cannot run is refused, and trains one after another."""

from typing import Any

import pytest
import torch
from lightning_modules import Lit, data, module, owners, rows, trainer
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import fl_lightning as fl


def draws(self: Any, batch: Any, index: int) -> Tensor:
    return Lit.training_step(self, {**batch, "x": batch["x"] + torch.randn(6)}, index)


def test_what_parallel_clients_cannot_run_is_named_by_the_users_class() -> None:
    mine = module(training_step=draws)
    with pytest.raises(fl.UserError, match=r"^Mine draws random numbers"):
        trainer(executor="stacked").fit(mine, data())


class Recomputed(nn.Linear):
    def forward(self, x: Tensor) -> Any:
        return checkpoint(super().forward, x, use_reentrant=False)


class WithGradientOfInputs(nn.Linear):
    def forward(self, x: Tensor) -> Any:
        x = x.clone().requires_grad_()
        out = super().forward(x)
        return out + torch.autograd.grad(out.sum(), x, create_graph=True)[0].mean()


class WithInferenceMode(nn.Linear):
    def forward(self, x: Tensor) -> Any:
        with torch.inference_mode():
            scale = super().forward(x).std()
        return super().forward(x) / scale.clone()


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (Recomputed, "saved tensor hooks"),
        (WithGradientOfInputs, "requires_grad_"),
        (WithInferenceMode, "inference tensor"),
    ],
)
def test_what_cannot_run_in_parallel_trains_one_after_another(kind: Any, words: str) -> None:
    given = fl.FederatedData(tuple(rows().values()), clients=owners())
    trainer(rounds=1).fit(kind(6, 3), given)
    with pytest.raises(fl.UserError, match=f"{words}.*sequential executor"):
        trainer(rounds=1, executor="stacked").fit(kind(6, 3), given)
