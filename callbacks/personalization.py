"""Test scores of personal models, each on the client's own samples, or on some like its data."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf, nan
from pathlib import Path

import torch
from torch import Tensor, nn

from fl_lightning.callbacks.bases import defined
from fl_lightning.callbacks.scoring import Scorer, write_csv
from fl_lightning.core.losses import scores_of
from fl_lightning.core.network import call, class_name
from fl_lightning.core.prediction import PersonalModel, from_logits, is_right
from fl_lightning.core.randomness import seeded_rng
from fl_lightning.core.vector import Layout
from fl_lightning.data import DeviceDataset, Partition, matched_test_split
from fl_lightning.errors import DivergenceError, TermError, UserError
from fl_lightning.executors.executor import Buffers
from fl_lightning.federation.divergence import all_finite
from fl_lightning.federation.federation import Federation, Metrics
from fl_lightning.federation.fine_tuning import FineTuning
from fl_lightning.federation.mean_loss import counted_samples, some_samples
from fl_lightning.federation.server import load_model


@dataclass(eq=False)
class PersonalModels:
    """Scores of clients' own models, from the global model or from that of the algorithm.

    A client's test set holds its own test samples, if it is known whose they are; else samples in
    the proportions of its own classes, as far as there are enough, as in FedSOL (see
    `matched_test_split`). A client without test samples has no score. The score is the accuracy of
    classes, else the run's first score.

    Args:
        test: The test set, on the device.
        lr: The learning rate of fine-tuning; None is that of the next round.
        samples: Most test samples of a client that are not its own.
        batch_size: Samples a forward pass.
        own: Each client's own samples in the test set, or None.
        task: Scores models whose targets are no classes.
        tag: The score of the task that counts, such as test/rmse.

    Raises:
        UserError: If there are no classes, and no task or no own samples.
    """

    test: DeviceDataset
    lr: float | None = None
    samples: int = 1000
    batch_size: int = 100
    own: Partition | None = None
    task: Scorer | None = None
    tag: str = "test/accuracy"

    def __post_init__(self) -> None:
        if not (self.test.classes or (self.task and self.own)):
            raise UserError(
                "clients' own models need classes, or test samples of each client's own, as "
                "FederatedData(test=0.2) takes them"
            )
        self.name = "accuracy" if self.test.classes else self.tag.rpartition("/")[2]

    def check(self, federation: Federation) -> None:
        """Raise a UserError if classes are to be predicted, but there are none or no scores."""
        if federation.algorithm.predict is not from_logits and not self.test.classes:
            raise UserError(
                "clients' own models predict classes in this method, but the targets are none: "
                "choose another method, or leave out --finetune-epochs and personal_scores"
            )
        if not self.test.classes:
            return
        module, first = federation.load_global(), torch.arange(1, device=self.test.device)
        with torch.no_grad(), seeded_rng(0, federation.w.device):
            out = scores_of(call(module, self.test.inputs(first)))
        if not isinstance(out, Tensor):
            raise UserError(
                f"the forward of {class_name(module)} gives its step no scores of classes for "
                "clients' own models: call self(x) in it, or leave out --finetune-epochs and "
                "personal_scores"
            )

    def scores(
        self, federation: Federation, epochs: Sequence[int], interruptible: bool = False
    ) -> Tensor:
        """A row for each client, a column for each number of epochs; all ranks have them.

        Args:
            federation: Between two rounds, or after the last.
            epochs: Numbers of epochs of fine-tuning.
            interruptible: Give it up if a rank is preempted, and end the run; then
                `federation.preempted` is set, and scores are missing.

        Raises:
            DivergenceError: If a model is not finite; with "skip-client" its score is nan.
        """
        tuning = FineTuning(federation, self.lr)
        scores = self._of_rank(tuning, epochs, interruptible)
        federation.all_reduce_sum(scores)
        scores, votes = scores[:-1], scores[-1]
        if votes.any():
            federation.should_stop = federation.preempted = True
            return scores
        tuning.check_finite(scores.isinf().any(1))
        return torch.where(scores.isinf(), nan, scores)

    def tests(self, federation: Federation) -> Partition:
        """The test samples of each client."""
        self.own = self.own or matched_test_split(
            self.test.labels, federation.clients.class_counts, self.samples, federation.seed
        )
        return self.own

    def _of_rank(self, tuning: FineTuning, epochs: Sequence[int], interruptible: bool) -> Tensor:
        """A row for each client, 0 for other ranks' clients; then a row of 1 if this rank stops."""
        federation, mine = tuning.federation, tuning.clients_of_rank()
        tests = self.tests(federation)
        size = federation.clients.num_clients + 1, len(epochs)
        scores = torch.zeros(size, dtype=torch.float64, device=federation.w.device)
        for column, e in enumerate(epochs):
            for client, (w, buffers) in zip(mine, tuning.models(mine, e), strict=True):
                index = tests[client].to(self.test.device)
                if not len(index := counted_samples(federation.loss, self.test, index)):
                    scores[client, column] = nan
                elif not all_finite(w):
                    scores[client, column] = inf
                elif self.test.classes:
                    model = tuning.personal_model(client, w, buffers)
                    scores[client, column] = self._accuracy(model, federation, index)
                elif self.task:
                    with holding(federation.module, tuning.layout, w, buffers):
                        found = self.task.scores(
                            self.test, "test", index, federation.fabric.autocast
                        )
                    scores[client, column] = found[self.tag]
                if interruptible and federation.preempt_requested:
                    scores[-1] = 1
                    return scores
        return scores

    def _accuracy(self, model: PersonalModel, federation: Federation, index: Tensor) -> float:
        index, right = index[some_samples(len(index), None).to(index.device)], 0
        with torch.inference_mode():
            predict = federation.algorithm.predict(model)
            for x, y in self.test.batches(index, self.batch_size):
                scores = predict(x)
                if scores.ndim != 2 or len(scores) != len(y):
                    raise TermError(
                        f"the algorithm's predict gave scores of shape {tuple(scores.shape)} for "
                        f"{len(y)} samples; they are (samples, classes)"
                    )
                right += int(is_right(scores, y).sum())
        return right / len(index)


@dataclass(eq=False)
class Personalization:
    """Fine-tunes the global model on every client after the last round, and scores these models.

    Logs `personal/accuracy_<e>` and `personal/std_<e>`, mean and standard deviation over clients,
    for each number of epochs `e`, and for 0: the global model, or the one that the algorithm keeps
    for the client. Without classes it is the run's first score instead, as in `personal/rmse_<e>`.
    A resumed run repeats what was interrupted.

    Args:
        models: Scores the models.
        epochs: Numbers of epochs of fine-tuning after which models are scored.
        path: The table with a row a client, `personal.csv`.
        say: Prints a line, on the first rank.
    """

    models: PersonalModels
    epochs: Sequence[int]
    path: Path
    say: Callable[[str], None] = lambda _: None

    def __post_init__(self) -> None:
        self.epochs = sorted({0, *self.epochs})

    def on_fit_start(self, federation: Federation) -> None:
        """Raise a UserError if the models cannot be scored."""
        self.models.check(federation)

    def on_fit_end(self, federation: Federation) -> None:
        if federation.preempted:
            return
        epochs = ", ".join(map(str, self.epochs))
        clients = federation.clients.num_clients
        self.say(f"{clients:,} clients, scored after {epochs} epochs of fine-tuning")
        try:
            metrics = self.score(federation)
        except DivergenceError as error:
            saved = "the rounds are done and saved"
            raise DivergenceError(f"{error} (--finetune-lr); {saved}") from None
        if metrics:
            federation.fabric.log_dict(metrics, step=federation.round)

    def score(self, federation: Federation) -> Metrics:
        """Score and write the table; returns nothing if a rank is preempted before the end."""
        scores = self.models.scores(federation, self.epochs, interruptible=True)
        if federation.preempted:
            return {}
        if federation.fabric.is_global_zero:
            header = "client", "test_samples", *(f"{self.models.name}_{e}" for e in self.epochs)
            sizes = self.models.tests(federation).sizes.tolist()
            rows = zip(range(len(scores)), sizes, *scores.T.tolist(), strict=True)
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_csv(self.path, [header, *rows])
        metrics = Metrics()
        for e, of_clients in zip(self.epochs, scores.T, strict=True):
            counted = defined(of_clients)
            metrics[f"personal/{self.models.name}_{e}"] = float(counted.mean())
            metrics[f"personal/std_{e}"] = float(counted.std(correction=0))
        return metrics


def check_rate(federation: Federation, epochs: int, lr: float | None, option: str) -> None:
    """Raise a UserError if models are fine-tuned after the last round, but at a rate of 0."""
    last = federation.local_training.rates.of_round(federation.rounds)
    if epochs and lr is None and not last > 0:
        raise UserError(f"the learning rate after the last round is 0: give {option}")


@contextmanager
def holding(module: nn.Module, layout: Layout, w: Tensor, buffers: Buffers) -> Iterator[None]:
    """A context in which a module has other weights and buffers."""
    own = [*module.parameters(), *module.buffers()]
    before = [t.detach().clone() for t in own]
    load_model(module, layout, w, buffers)
    try:
        yield
    finally:
        with torch.no_grad():
            for t, value in zip(own, before, strict=True):
                t.copy_(value)
