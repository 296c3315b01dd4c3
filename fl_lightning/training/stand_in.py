"""What a LightningModule finds in the place of its Trainer."""

from typing import Any, Literal

from fl_lightning.errors import ModelError


class StandIn:
    """What `self.trainer` is in a federation: the round and the kind of step, and no more."""

    sanity_checking = predicting = False

    def __init__(self) -> None:
        self.current_epoch: Any = 0
        self.rounds: int | None = None  # while `configure_optimizers` runs
        self.reads_rounds = False
        self.enter("training")

    @property
    def max_epochs(self) -> int:
        """The number of rounds, for a schedule; not for steps: a run may be extended."""
        if self.rounds is None:
            raise AttributeError
        self.reads_rounds = True
        return self.rounds

    def enter(self, part: Literal["training", "validation", "test"]) -> None:
        """Let the next steps be of this part."""
        self.training = part == "training"
        self.validating, self.testing = part == "validation", part == "test"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # which copying asks for
            raise AttributeError(name)
        raise ModelError(
            f"a federation has no self.trainer.{name}, which the module reads itself or by a "
            "method of LightningModule: it has self.current_epoch, the round"
        )
