"""Test accuracy and loss of the global model."""

import torch
from torch import nn
from torchmetrics import MeanMetric, MetricCollection
from torchmetrics.classification import MulticlassAccuracy

from fl_lightning.data import Dataset
from fl_lightning.executors.visit import TaskLoss
from fl_lightning.federation import Federation, Metrics


class Evaluation:
    """Adds `test/accuracy` and `test/loss` every so many rounds, and after the last one.

    Every rank scores its own part of the test set; torchmetrics adds the parts up, so that no sample counts twice.

    Args:
        test: The test set, on the device.
        every: Evaluate after every `every`-th round.
        batch_size: Samples a forward pass.
        loss: The task's loss, averaged over a batch.
    """

    def __init__(
        self, test: Dataset, every: int = 1, batch_size: int = 100, loss: TaskLoss = nn.functional.cross_entropy
    ):
        if every < 1:
            raise ValueError(f"evaluate after every n-th round with n at least 1, not {every}")
        self.test, self.every, self.batch_size, self.loss = test, every, batch_size, loss
        device = test.x.device
        accuracy = MulticlassAccuracy(num_classes=len(test.classes), average="micro")
        self.metrics = MetricCollection({"test/accuracy": accuracy}).to(device)
        self.mean_loss = MeanMetric().to(device)

    def on_round_end(self, federation: Federation, metrics: Metrics) -> None:
        """Score the global model, on all ranks."""
        if federation.round % self.every and federation.round < federation.rounds:
            return
        module, fabric = federation.load_global(), federation.fabric
        index = torch.arange(fabric.global_rank, len(self.test), fabric.world_size, device=self.test.x.device)
        with torch.inference_mode(), fabric.autocast():
            for batch in index.split(self.batch_size):
                out, y = module(self.test.inputs(batch)), self.test.y[batch]
                self.metrics.update(out.float(), y)
                self.mean_loss.update(self.loss(out.float(), y), weight=len(y))
        metrics.update({name: float(value) for name, value in self.metrics.compute().items()})
        metrics["test/loss"] = float(self.mean_loss.compute())
        self.metrics.reset()
        self.mean_loss.reset()
