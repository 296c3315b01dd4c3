"""SAM in an ordinary Lightning project: wrap the optimizer.

    python recipes/sam_in_lightning.py --rho 0.05

A small convolutional network on the digits of scikit-learn. `--rho 0` is plain SGD, at the price of
SAM's two passes.
"""

import argparse
import logging
import warnings

import torch
import torch.nn.functional as F
from lightning import LightningModule, Trainer, seed_everything
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics.classification import MulticlassAccuracy

from fl_lightning.data.sources import digits
from fl_lightning.optim import SAM


class Classifier(LightningModule):
    """One convolution and one linear layer."""

    def __init__(self, rho: float, lr: float):
        super().__init__()
        self.rho, self.lr = rho, lr
        convolution = nn.Sequential(nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
        self.model = nn.Sequential(convolution, nn.Flatten(), nn.Linear(32 * 4 * 4, 10))
        self.accuracy = MulticlassAccuracy(10, average="micro")

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:  # noqa: D102
        x, y = batch
        return F.cross_entropy(self.model(x), y)

    def test_step(self, batch: list[Tensor], index: int) -> None:  # noqa: D102
        x, y = batch
        self.accuracy(self.model(x), y)
        self.log("accuracy", self.accuracy)

    def configure_optimizers(self) -> tuple[list[Optimizer], list[CosineAnnealingLR]]:
        """SAM around SGD; with BatchNorm `buffers` matters, see `GradientTransform`."""
        sgd = torch.optim.SGD(self.parameters(), lr=self.lr, momentum=0.9, weight_decay=1e-4)
        sam = SAM(sgd, rho=self.rho, buffers=self)
        return [sam], [CosineAnnealingLR(sam, self.trainer.max_epochs or 1)]


def main(rho: float, epochs: int, lr: float, seed: int) -> None:
    """Train, test, print the accuracy."""
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    warnings.filterwarnings(
        "ignore", ".*(many workers|LeafSpec).*"
    )  # the data lie in memory; Lightning's own
    torch.set_num_threads(1)  # so small a network gains nothing from more
    seed_everything(seed, verbose=False)
    train, test = (
        TensorDataset(part.inputs(torch.arange(len(part.y))), part.y) for part in digits()
    )
    lit = Classifier(rho, lr)
    trainer = Trainer(
        max_epochs=epochs, logger=False, enable_checkpointing=False, enable_model_summary=False
    )
    trainer.fit(lit, DataLoader(train, batch_size=64, shuffle=True))
    (result,) = trainer.test(lit, DataLoader(test, batch_size=512), verbose=False)
    print(f"rho {rho:g}: test accuracy {result['accuracy']:.2%}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rho", type=float, default=0.05, help="radius of the perturbation")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=0)
    main(**vars(parser.parse_args()))
