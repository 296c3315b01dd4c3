"""Clients' own models: their scores in some rounds, and their weights after the last one."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from fl_lightning.callbacks.bases import Measure, check_test, defined, over_clients
from fl_lightning.callbacks.personalization import PersonalModels, check_rate
from fl_lightning.core.constraints import NonNegativeInt, PositiveFloat, check
from fl_lightning.core.network import uncompiled
from fl_lightning.core.prediction import from_logits
from fl_lightning.data import DeviceDataset, Partition, own_test_split
from fl_lightning.errors import UserError
from fl_lightning.federation.divergence import all_finite
from fl_lightning.federation.federation import Federation, Metrics
from fl_lightning.federation.fine_tuning import FineTuning
from fl_lightning.federation.server import load_model
from fl_lightning.files import atomic


@dataclass(eq=False)
class PersonalScores(Measure):
    """Scores clients' own models in some rounds, as `--finetune-epochs` does after the last one.

    Adds `own/accuracy`, `own/accuracy_std` and `own/accuracy_worst10`: mean and standard deviation
    over all clients, and the mean over the worst tenth of them. Without classes it is the run's
    first score, as in `own/rmse`. `fl_lightning.callbacks.PersonalModels` says on which samples.

    Args:
        epochs: Epochs of fine-tuning before a model is scored; 0 takes the models as they are.
        lr: The learning rate of fine-tuning; None is that of the next round.
        train: The training set.
        test: The test set.
        partition: Which client has which training samples.
        task: The run's task, which has its scores.
        own_tests: Each client's own samples in the test set, if they were taken of the clients.
    """

    epochs: NonNegativeInt = 0
    lr: PositiveFloat | None = None
    train: DeviceDataset = field(kw_only=True)
    test: DeviceDataset = field(kw_only=True)
    partition: Partition = field(kw_only=True)
    task: Any = field(kw_only=True)
    own_tests: Partition | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_test(self.test, "PersonalScores")
        own = self.own_tests or own_test_split(self.train, self.test, self.partition)
        tag = self.task.evaluation(self.test, "test", self.every).monitor
        self.models = PersonalModels(self.test, self.lr, own=own, task=self.task, tag=tag)
        self.name = f"own/{self.models.name}"
        larger = bool(self.test.classes) or self.task.larger_is_better(tag)
        self.directions = {self.name: larger, f"{self.name}_worst10": larger}

    def on_fit_start(self, federation: Federation) -> None:
        """Raise a UserError if the models cannot be scored in one of the rounds."""
        self.models.check(federation)
        check_rate(federation, self.epochs, self.lr, "personal_scores:lr")

    def measure(self, federation: Federation) -> Metrics:
        scores = defined(self.models.scores(federation, [self.epochs])[:, 0])
        return over_clients(self.name, scores, larger=self.directions[self.name])


@dataclass(eq=False)
class PersonalWeights:
    """Writes each client's own model after the last round: `personal/<client>.pt`.

    `Run.model(client=3)` loads it. A file holds weights and buffers by name, without frozen
    weights, which are in `model.pt`. A finished run gets them when it is resumed; one that is
    extended loses them until its new last round.

    Args:
        epochs: Epochs of fine-tuning before a model is written; 0 takes the models as they are.
        lr: The learning rate of fine-tuning; None is that of the next round.
        folder: The run's folder.
    """

    epochs: NonNegativeInt = 0
    lr: PositiveFloat | None = None
    folder: Path = field(kw_only=True)

    def __post_init__(self) -> None:
        check(self, " of PersonalWeights")

    def on_fit_start(self, federation: Federation) -> None:
        """Raise a UserError if weights alone are no models, or cannot be fine-tuned."""
        if federation.algorithm.predict is not from_logits:
            raise UserError(
                "clients' own models of this method are not weights alone: leave out "
                "personal_weights, and score them with personal_scores"
            )
        check_rate(federation, self.epochs, self.lr, "personal_weights:lr")

    def on_fit_end(self, federation: Federation) -> None:
        """Write the models; one that is not finite is left out.

        Raises:
            DivergenceError: If there is one, unless `on_divergence` is "skip-client".
        """
        if federation.preempted:
            return
        tuning = FineTuning(federation, self.lr)
        mine = tuning.clients_of_rank()
        lost = torch.zeros(federation.clients.num_clients, device=federation.w.device)
        module = uncompiled(tuning.module)
        frozen = {name for name, p in module.named_parameters() if not p.requires_grad}
        for client, (w, buffers) in zip(mine, tuning.models(mine, self.epochs), strict=True):
            if not all_finite(w):
                lost[client] = 1
                continue
            state = load_model(module, tuning.layout, w, buffers).state_dict()
            with atomic(self.folder / "personal" / f"{client}.pt") as file:
                torch.save({k: t.cpu() for k, t in state.items() if k not in frozen}, file)
        federation.all_reduce_sum(lost)
        tuning.check_finite(lost)
