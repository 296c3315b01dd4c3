"""A user's program with FederatedTrainer: `python fit_program.py RANKS FOLDER`.

Every rank saves what it has found in `FOLDER/rank-<k>.pt`.
"""

import os
import sys
from pathlib import Path
from typing import Any

import torch
from least_squares import rows
from lightning_modules import Lit, data, on_plateau, state, trainer
from lightning_modules import rows as classes
from torch import Tensor, nn
from torchmetrics.classification import MulticlassAccuracy

import fl_lightning as fl


class WithMetric(Lit):
    """With a torchmetrics object in both steps."""

    def __init__(self) -> None:
        super().__init__()
        self.accuracy = MulticlassAccuracy(3, average="micro")

    def training_step(self, batch: dict[str, Tensor], index: int) -> Tensor:
        self.log("acc", self.accuracy(self(batch["x"]), batch["label"]))
        return super().training_step(batch, index)

    def validation_step(self, batch: dict[str, Tensor], index: int) -> None:
        self.accuracy(self(batch["x"]), batch["label"])
        self.log("val_acc", self.accuracy)


class OnPlateau(WithMetric):
    """With a rate that a score decides."""

    configure_optimizers = on_plateau("val_acc", mode="max")


def scores(run: fl.runs.run.Run) -> dict[str, dict[int, float]]:
    return {tag: dict(v) for tag, v in run.scalars.items() if not tag.startswith("time/")}


def main(ranks: int, folder: Path) -> dict[str, Any]:
    options: dict[str, Any] = {"devices": ranks, "deterministic": True}
    run_dir, (x, y, owners) = folder / "run", rows()
    regression = fl.FederatedData((x, y), clients=owners, test=0.3)
    fit = trainer("scaffold", loss="mse", metrics=["rmse", "r2"], run_dir=run_dir, **options)
    line = nn.Linear(1, 1).double()
    nn.init.zeros_(line.weight), nn.init.zeros_(line.bias)
    # true on further ranks, which come later, though there was no run
    found = {"regression": scores(fit.fit(line, regression, resume=os.path.exists(run_dir)))}
    found["line"] = state(line)
    found["each"] = fit.test(data=regression, per_client=True).to_dict()
    module = OnPlateau()
    again = trainer(run_dir=folder / "again", rounds=4, **options)
    found["again"] = scores(again.fit(module, lambda: data(validation=classes(23))))
    found["module"] = state(module)
    try:
        trainer(devices=ranks + 1).fit(Lit(), data())
    except fl.UserError as error:
        found["other"] = str(error)
    return found


def save(ranks: int, folder: Path) -> None:
    torch.save(main(ranks, folder), folder / f"rank-{os.environ.get('LOCAL_RANK', 0)}.pt")


if __name__ == "__main__":
    torch.set_num_threads(1)
    save(int(sys.argv[1]), Path(sys.argv[2]))
