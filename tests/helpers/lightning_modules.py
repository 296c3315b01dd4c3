"""LightningModules as users write them, data for them, and a trainer on one CPU."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning import LightningModule, Trainer
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau, StepLR
from torch.utils.data import DataLoader

import fl_lightning as fl

SIZES = (13, 7, 12, 9)
"""Rows of four clients; in batches of 5 every last batch is short."""


class Lit(LightningModule):
    """A classifier of `{"x": (n, 6), "label": (n,)}` with what modules usually have.

    Args:
        optimizer: Makes the optimizer.
        norm: With BatchNorm.
        dropout: The probability of dropout.
        step: Rounds after which StepLR halves the rate; 0: no scheduler.
    """

    def __init__(
        self,
        optimizer: Callable[..., Optimizer] = partial(SGD, lr=0.1),
        norm: bool = True,
        dropout: float = 0.0,
        step: int = 0,
    ):
        super().__init__()
        self.save_hyperparameters(ignore="optimizer")
        self.make, self.step = optimizer, step
        torch.manual_seed(1)
        self.inner = nn.Linear(6, 8, bias=not norm)  # Adam makes rounding noise of it before a norm
        self.norm = nn.BatchNorm1d(8) if norm else nn.Identity()
        self.drop = nn.Dropout(dropout)
        self.outer = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Any:
        return self.outer(self.drop(torch.tanh(self.norm(self.inner(x)))))

    def training_step(self, batch: dict[str, Tensor], index: int) -> Tensor:
        loss = F.cross_entropy(self(batch["x"]), batch["label"])
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: dict[str, Tensor], index: int) -> None:
        out = self(batch["x"])
        self.log("val_loss", F.cross_entropy(out, batch["label"]))
        self.log("val_acc", (out.argmax(1) == batch["label"]).double().mean())

    def test_step(self, batch: dict[str, Tensor], index: int) -> None:
        self.log("test_loss", F.cross_entropy(self(batch["x"]), batch["label"]))

    def configure_optimizers(self) -> Any:
        optimizer = self.make(self.parameters())
        return ([optimizer], [StepLR(optimizer, self.step, 0.5)]) if self.step else optimizer


def decaying(make: Callable[..., Optimizer], parameters: Any, **options: Any) -> Optimizer:
    """An optimizer that decays matrices alone."""
    every = [*parameters]
    return make(
        [
            {"params": [p for p in every if p.ndim == 1], "weight_decay": 0.0},
            {"params": [p for p in every if p.ndim > 1], "weight_decay": 0.1},
        ],
        **options,
    )


def with_rates(make: Callable[..., Optimizer], parameters: Any, **options: Any) -> Optimizer:
    """An optimizer that steps the last layer ten times as far."""
    *others, weight, bias = parameters
    groups = {"params": others, "lr": 0.01}, {"params": [weight, bias], "lr": 0.1}
    return make([*groups], **options)


class ByRound(Lit):
    """Weighs its loss by the round, which a program must not keep as it was when traced."""

    def training_step(self, batch: dict[str, Tensor], index: int) -> Tensor:
        return (1 + self.current_epoch) * super().training_step(batch, index)


def rows(number: int = sum(SIZES), dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(2)
    y = torch.randint(3, (number,), generator=g)
    x = torch.randn(number, 6, generator=g, dtype=torch.float64) + y[:, None]
    return {"x": x.to(dtype), "label": y}


def owners(sizes: tuple[int, ...] = SIZES) -> Tensor:
    return torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))


def data(dtype: torch.dtype = torch.float32, **options: Any) -> fl.FederatedData:
    return fl.FederatedData(rows(dtype=dtype), **{"clients": owners(), **options})


def trainer(algorithm: Any = "fedavg", **options: Any) -> fl.FederatedTrainer:
    """Two rounds of all clients in batches of five on one CPU, unless `options` say otherwise."""
    small = {"rounds": 2, "participation": 1.0, "batch_size": 5, "accelerator": "cpu"}
    return fl.FederatedTrainer(algorithm, **{**small, **options})


def state(module: nn.Module) -> dict[str, Tensor]:
    return {name: t.detach().clone() for name, t in module.state_dict().items()}


def distance(module: nn.Module | dict[str, Tensor], other: nn.Module | dict[str, Tensor]) -> float:
    mine, theirs = (m if isinstance(m, dict) else m.state_dict() for m in (module, other))
    assert mine.keys() == theirs.keys()
    return max(float((mine[k].double() - theirs[k].double()).abs().max()) for k in mine)


def lightning(module: LightningModule, batch: Any, steps: int) -> LightningModule:
    fit = Trainer(
        accelerator="cpu",
        devices=1,
        max_steps=steps,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        log_every_n_steps=1,
        limit_val_batches=0,
    )
    loader = DataLoader(range(steps), collate_fn=lambda _: batch)
    fit.fit(module, loader, loader)
    return module


def module(**members: Any) -> Any:
    return type("Mine", (Lit,), members)()


def on_plateau(
    monitor: str = "val_loss", make: Any = partial(SGD, lr=0.3), **options: Any
) -> Callable[[Any], Any]:
    """`configure_optimizers` with a ReduceLROnPlateau that nearly any score fails."""
    own = {name: options.pop(name) for name in ("frequency", "strict") if name in options}

    def configure_optimizers(self: Any) -> Any:
        optimizer = make(self.parameters())
        scheduler = ReduceLROnPlateau(
            optimizer, **{"factor": 0.5, "patience": 0, "threshold": 0.5, **options}
        )
        return [optimizer], [{"scheduler": scheduler, "monitor": monitor, **own}]

    return configure_optimizers


def step_with(extra: Callable[[Any, Any], Any]) -> Callable[..., Tensor]:
    def training_step(self: Any, batch: Any, index: int) -> Tensor:
        extra(self, batch)
        return Lit.training_step(self, batch, index)

    return training_step


def refused(fit: Callable[[], Any], *words: str) -> str:
    with pytest.raises(fl.UserError) as error:
        fit()
    said = str(error.value)
    for word in words:
        assert word in said, said
    assert "--" not in said
    assert "StepModel" not in said
    assert "\n" not in said
    assert not Path("runs").exists()
    return said
