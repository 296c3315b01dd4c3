"""An ordinary LightningModule, federated in four lines.

    python recipes/lightning_module.py

The same module trains in a Trainer: Trainer(max_epochs=5).fit(DigitsModule(), loader).
"""

from argparse import ArgumentParser

import torch
from lightning import LightningModule
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import fl_lightning as fl


class DigitsModule(LightningModule):
    """A perceptron that knows nothing of clients."""

    def __init__(self, hidden: int = 64):
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, 10))

    def forward(self, x: Tensor) -> Tensor:
        """Scores of the classes."""
        out: Tensor = self.net(x)
        return out

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        """The loss of a batch."""
        x, y = batch
        loss = cross_entropy(self(x), y)
        self.log("train_loss", loss)
        return loss

    def test_step(self, batch: tuple[Tensor, Tensor], index: int) -> None:
        """The accuracy of a batch."""
        x, y = batch
        self.log("test_accuracy", (self(x).argmax(1) == y).float().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Every client's optimizer."""
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


if __name__ == "__main__":
    ArgumentParser(description=__doc__).parse_args()  # it has no options
    images, labels = load_digits(return_X_y=True)
    rows = torch.tensor(images / 16).float(), torch.tensor(labels)

    data = fl.FederatedData(rows, clients=fl.partitions.dirichlet(alpha=0.3, clients=20), test=0.2)
    trainer = fl.FederatedTrainer("scaffold", rounds=50, participation=0.25, batch_size=16)
    trainer.fit(DigitsModule(), data)
    print(trainer.test(data=data, per_client=True))
