"""Test accuracy and loss of the global model."""

import torch
from torch import nn

from fl_lightning.data import DeviceDataset
from fl_lightning.executors.executor import TaskLoss
from fl_lightning.federation.federation import Federation, Metrics


class Evaluation:
    """Adds `test/accuracy` and `test/loss` every so many rounds, and after the last one.

    The batches of the test set are dealt out to the ranks, and each has a row of its own in what
    the ranks add up: no sample counts twice, and the scores are the same to the last bit on any
    number of ranks.

    Args:
        test: The test set, on the device.
        every: Evaluate after every `every`-th round.
        batch_size: Samples a forward pass.
        loss: The task's loss, averaged over a batch.
    """

    def __init__(
        self,
        test: DeviceDataset,
        every: int = 1,
        batch_size: int = 100,
        loss: TaskLoss = nn.functional.cross_entropy,
    ):
        if every < 1:
            raise ValueError(f"evaluate after every n-th round with n at least 1, not {every}")
        self.test, self.every, self.batch_size, self.loss = test, every, batch_size, loss

    def on_round_end(self, federation: Federation, metrics: Metrics) -> None:
        """Score the global model, on all ranks."""
        if federation.round % self.every and federation.round < federation.rounds:
            return
        module, fabric = federation.load_global(), federation.fabric
        batches = torch.arange(len(self.test), device=self.test.x.device).split(self.batch_size)
        scores = torch.zeros(len(batches), 2, dtype=torch.float64, device=self.test.x.device)
        with torch.inference_mode(), fabric.autocast():
            for k in range(fabric.global_rank, len(batches), fabric.world_size):
                out, y = module(self.test.inputs(batches[k])).float(), self.test.y[batches[k]]
                right = (
                    (out.argmax(1) == y) & ~out.isnan().any(1)
                ).sum()  # or no number at all would be a class
                scores[k] = torch.stack([right.double(), self.loss(out, y).double() * len(y)])
        federation.all_reduce_sum(scores)
        metrics["test/accuracy"], metrics["test/loss"] = (scores.sum(0) / len(self.test)).tolist()
