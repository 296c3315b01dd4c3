"""Scores of the global model on the test set or the validation part."""

from collections.abc import Iterable, Mapping
from typing import Any

from torchmetrics import Metric

from fl_lightning.callbacks.bases import Measure
from fl_lightning.callbacks.metrics import Accuracy, larger_is_better, make_metrics
from fl_lightning.callbacks.scoring import score_together
from fl_lightning.data import DeviceDataset
from fl_lightning.errors import UserError
from fl_lightning.federation.federation import Federation, Metrics


class Evaluation(Measure):
    """Adds `test/accuracy`, `test/loss` and further metrics to some rounds and to the last one.

    The loss is the federation's. There is an accuracy if the data set has classes.

    The scores are identical to the last bit on any number of ranks. Give it to `Checkpoint` as
    well: a resumed run is then scored on the same test set.

    Args:
        test: The test set, on the device.
        batch_size: Samples a forward pass, or more if they are small (see `forward_batch`).
        name: The first part of the scalars' names: "test", or "val" for a validation part.
        metrics: Names of `fl_lightning.callbacks.metrics.METRICS`, or torchmetrics objects by name.

    Attributes:
        directions: By the name of each scalar, whether larger values are better: as the metric
            says, else by its name. The first one is that of the first metric, else the accuracy,
            else the loss.
    """

    def __init__(
        self,
        test: DeviceDataset,
        every: int = 1,
        batch_size: int = 100,
        name: str = "test",
        metrics: Iterable[str] | Mapping[str, Metric] = (),
    ):
        super().__init__(every)
        self.test, self.name, self.batch_size = test, name, batch_size
        made = make_metrics(metrics, len(test.classes), test.device)
        own: dict[str, Metric | None] = {"accuracy": None} if test.classes else {}
        named = {**made, **own, "loss": None}
        self.directions = {f"{name}/{k}": larger_is_better(k, m) for k, m in named.items()}
        # the accuracy of classes is summed exactly over the ranks instead
        summed = Accuracy if test.classes else ()
        self.metrics = {k: metric for k, metric in made.items() if not isinstance(metric, summed)}
        self.scored = 0  # the last round that was

    @property
    def monitor(self) -> str:
        """The scalar by which a model is the best: the first one."""
        return next(iter(self.directions), "train/loss")

    def measure(self, federation: Federation) -> Metrics:
        self.scored = federation.round
        module, size = federation.load_global(), self.batch_size
        scores = score_together(federation, module, self.test, None, size, self.metrics)
        return {f"{self.name}/{name}": value for name, value in scores.items()}

    def on_fit_end(self, federation: Federation) -> None:
        """Score the last round if an interruption has kept it from being scored."""
        if self.scored < federation.round:
            federation.fabric.log_dict(self.measured(federation), step=federation.round)

    def state_dict(self) -> dict[str, Any]:
        """The digest of the test set, and the last round that was scored."""
        return {"test": self.test.digest, "scored": self.scored}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Raise a UserError if the test set has changed since the run began."""
        if state["test"] != self.test.digest:
            raise UserError(
                f"the {self.name} set has changed since the run began: restore it, and seed what "
                "loads it, or start another run"
            )
        self.scored = state["scored"]
