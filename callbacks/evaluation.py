"""Accuracy and loss of the global model on the test set or the validation part."""

from typing import Any

from torch import nn

from fl_lightning.callbacks.measure import score_together
from fl_lightning.data import DeviceDataset
from fl_lightning.executors.executor import TaskLoss
from fl_lightning.federation.federation import Federation, Metrics


class Evaluation:
    """Adds `test/accuracy` and `test/loss` to the metrics of some rounds and of the last one.

    A run that a callback ends is scored once more if its last round was not.

    The ranks share the batches of the test set. Each batch has its own row in the sum over ranks,
    so the scores are identical to the last bit on any number of ranks. Give it to `Checkpoint` as
    well: a resumed run is then scored on the same test set.

    Args:
        test: The test set, on the device.
        every: Evaluate after every `every`-th round.
        batch_size: Samples a forward pass.
        loss: The task's loss, averaged over a batch.
        name: The first part of the scalars' names: "test", or "val" for a validation part.
    """

    def __init__(
        self,
        test: DeviceDataset,
        every: int = 1,
        batch_size: int = 100,
        loss: TaskLoss = nn.functional.cross_entropy,
        name: str = "test",
    ):
        if every < 1:
            raise ValueError(f"every is a number of rounds, at least 1, not {every}")
        self.test, self.every, self.batch_size, self.loss = test, every, batch_size, loss
        self.name, self._scored = name, 0

    def on_round_end(self, federation: Federation, metrics: Metrics) -> None:
        """Score the global model, on all ranks."""
        if federation.round % self.every == 0 or federation.round == federation.rounds:
            metrics.update(self.score(federation))

    def on_fit_end(self, federation: Federation) -> None:
        """Score a run that ended early, unless its last round was scored, and log it with that."""
        if federation.round < federation.rounds and self._scored < federation.round:
            federation.fabric.log_dict(self.score(federation), step=federation.round)

    def score(self, federation: Federation) -> Metrics:
        """Score the global model, on all ranks."""
        self._scored = federation.round
        module = federation.load_global()
        accuracy, mean_loss = score_together(
            federation, module, self.test, loss=self.loss, batch_size=self.batch_size
        )
        return {f"{self.name}/accuracy": accuracy, f"{self.name}/loss": mean_loss}

    def state_dict(self) -> dict[str, Any]:
        """The digest of the test set."""
        return {"test": self.test.digest}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Raise a ValueError if the test set has changed since the run began."""
        if state["test"] != self.test.digest:
            raise ValueError(
                f"the {self.name} set has changed since the run began: restore it, and seed what "
                "loads it, or start another run"
            )
