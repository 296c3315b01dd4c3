"""A task: a module with its loss, its local optimizer, and how it is scored."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from lightning import LightningModule
from torch import Tensor, nn
from torch.nn.functional import pad
from torch.utils._pytree import tree_leaves, tree_map
from torchmetrics import Metric

from fl_lightning.callbacks.bases import CohortMeasure, over_clients
from fl_lightning.callbacks.evaluation import Evaluation
from fl_lightning.callbacks.metrics import make_metrics, results
from fl_lightning.callbacks.scoring import Autocast, score
from fl_lightning.core.algorithm import Algorithm
from fl_lightning.core.losses import LOSSES, TaskLoss, own_loss
from fl_lightning.core.schedule import ExponentialDecay, Schedule
from fl_lightning.data import DeviceDataset
from fl_lightning.data.dataset import rows as count
from fl_lightning.data.federated import FederatedData
from fl_lightning.errors import ModelError, UserError, first_sentence, nearest
from fl_lightning.executors import ClientResult
from fl_lightning.federation.federation import Federation, Metrics
from fl_lightning.runs.chosen import number_names
from fl_lightning.training.lightning_module import Part, StepModel, local_optimizer

NAMES = {"test": "test", "validation": "val"}
"""The first part of the names of scores, by the part of the data."""

OF_SGD = "momentum", "weight_decay", "lr_decay"
"""Options of the local SGD, which say nothing without its learning rate."""


@dataclass(eq=False)
class Task:
    """A plain module with a loss and metrics.

    Args:
        module: The user's module.
        loss: The loss of its output and the target.
        metrics: Names or torchmetrics objects.
        batch_size: Samples a batch in evaluation.
    """

    module: nn.Module
    loss: TaskLoss
    metrics: Sequence[str] | Mapping[str, Metric] = ()
    batch_size: int = 100

    @property
    def model(self) -> nn.Module:
        """What the federation trains."""
        return self.module

    def optimizer(self, algorithm: Algorithm, decay: float, _: int) -> tuple[Algorithm, Schedule]:
        """The algorithm with the local optimizer of the task, and the schedule of its rate."""
        return algorithm, ExponentialDecay(decay)

    @property
    def callbacks(self) -> list[Any]:
        """Callbacks that the task needs, after a dry run of the model."""
        return []

    @property
    def notes(self) -> list[str]:
        """Sentences for the user, after a dry run of the model."""
        return []

    def try_out(self, data: DeviceDataset, part: str) -> None:
        """Score the module on the first samples, which changes nothing.

        Raises:
            UserError: If a metric cannot take them.
        """
        first = torch.arange(min(len(data), self.batch_size))
        try:
            self._scored(self.scores(data, part, first), part)
        except (UserError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            raise UserError(
                f"{self._scorer(part)} cannot score the {part} part "
                f"({type(error).__name__}: {first_sentence(error)}): {self.fix}"
            ) from error

    fix = "choose other metrics, or other targets"

    def _scorer(self, part: str) -> str:
        return f"a metric of {', '.join(self.metrics)}" if self.metrics else "the loss"

    def _scored(self, scores: Metrics, part: str) -> None:
        """Take note of the first scores of a part."""

    def attached(self) -> AbstractContextManager[None]:
        """A context in which the module takes part in a federation."""
        return nullcontext()

    def dataset(self, data: FederatedData, part: str = "train") -> DeviceDataset:
        """The rows of a part as the module takes them, floating ones in its dtype.

        Raises:
            UserError: If the data have no such part.
        """
        rows = self._rows(data, part)
        x, y = data.divided(rows)
        if self.loss is own_loss:
            x = rows
        elif part == "train":
            _check_shifted(x, y)
        return DeviceDataset(x, y, self._classes(data), **owners(data, part))

    def _rows(self, data: FederatedData, part: str) -> Any:
        if (rows := getattr(data, part)) is None:
            raise UserError(f"the data have no {part} part: give FederatedData {part}=0.2")
        dtype = next(self.module.parameters()).dtype
        return tree_map(lambda t: t.to(dtype) if t.is_floating_point() else t, rows)

    def _classes(self, data: FederatedData) -> tuple[str, ...]:
        """The names of the classes, numbers if they have none; none if targets are no classes."""
        if data.classes or self.loss not in (LOSSES["cross_entropy"], own_loss):
            return data.classes
        parts = [rows for rows in (data.train, data.test, data.validation) if rows is not None]
        targets = [data.divided(rows)[1] for rows in parts]
        return number_names(*targets)

    def evaluation(self, data: DeviceDataset, part: str, every: int) -> Evaluation:
        """The callback that scores the global model on a part."""
        return Evaluation(data, every, self.batch_size, NAMES[part], self.metrics)

    @torch.no_grad()
    def scores(
        self,
        data: DeviceDataset,
        part: str,
        index: Tensor | None = None,
        autocast: Autocast = nullcontext,
    ) -> Metrics:
        """The scores of the module as it is on some samples, or all, on this rank alone."""
        index = (torch.arange(len(data)) if index is None else index).to(data.device)
        metrics = make_metrics(self.metrics, len(data.classes), data.device)
        size, model = self.batch_size, self.module.eval()
        right, total = score(model, data, index, self.loss, autocast, size, metrics.values())
        own = {"accuracy": right.double().mean().item()} if data.classes else {}
        found = own | {"loss": total.item() / len(index)} | results(metrics)
        return {f"{NAMES[part]}/{name}": value for name, value in found.items()}

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Lend the user's module to a federation, which trains it in place.

        Afterwards it is in training mode on the device where it was. Its parameters have storage of
        their own, and are frozen or trainable as before.
        """
        trainable = [(p, p.requires_grad) for p in self.module.parameters()]
        home = trainable[0][0].device
        try:
            with self.attached():
                yield
        finally:
            for p, before in trainable:
                p.data = p.data.clone()
                p.requires_grad_(before)
            self.module.train().to(home)


def _check_shifted(x: Any, y: Tensor) -> None:
    """Refuse tokens as their own targets, which a model learns to copy."""
    if isinstance(x, Tensor) and x.dtype == y.dtype == torch.int64 and x[:8].equal(y[:8]):
        raise UserError(
            "the targets are the tokens themselves, which a model learns to copy: shift them by "
            "one, as in FederatedData((tokens[:, :-1], tokens[:, 1:]), ...), or give a model of "
            "transformers, which shifts them itself"
        )


def computes_its_loss(module: nn.Module) -> bool:
    """Whether a module is one of transformers or peft, whose output has the loss of its labels."""
    known = {"PreTrainedModel", "PeftModel"}  # by name, since both packages are extras
    return any(base.__name__ in known for base in type(module).__mro__)


def owners(data: FederatedData, part: str) -> dict[str, Any]:
    """The owner of each row of a part as its domain; nothing if rows to score have no owners."""
    owned = data.partition if part == "train" else data.parts.get(part)
    if owned is None or not data.parts:
        return {}
    missing = count(getattr(data, part)) - len(owner := owned.owners())
    return {"domains": pad(owner, (0, missing)), "domain_names": tuple(data.names)}


class LightningTask(Task):
    """A LightningModule: its steps are loss and scores, `configure_optimizers` the optimizer.

    Raises:
        ModelError: If no federation can train it.
    """

    def __init__(self, module: LightningModule, batch_size: int, own_optimizer: bool):
        self.steps, self.own_optimizer = StepModel(module), own_optimizer
        self.logged = dict[str, list[str]]()  # the names of the scores of each part
        super().__init__(module, own_loss, (), batch_size)

    @property
    def model(self) -> nn.Module:
        """The module with its training step as `forward`."""
        return self.steps

    def optimizer(
        self, algorithm: Algorithm, decay: float, rounds: int
    ) -> tuple[Algorithm, Schedule]:
        """The algorithm with the module's optimizer and schedule, unless options give it."""
        if not self.own_optimizer:
            return super().optimizer(algorithm, decay, rounds)
        assert isinstance(self.module, LightningModule)
        local, schedule = local_optimizer(self.module, rounds)
        return algorithm.replace(local=local), schedule

    @property
    def callbacks(self) -> list[Any]:
        """What publishes the numbers that `training_step` logs."""
        return [StepLogs(self.steps.logs)] if self.steps.logs else []

    @property
    def notes(self) -> list[str]:
        """That metrics rest in the training step, if it has some."""
        note = (
            f"note: metrics rest in {type(self.module).__name__}.training_step, as parallel "
            "clients cannot keep their sums: log numbers there"
        )
        return [note] if self.steps.rests else []

    def _scored(self, scores: Metrics, part: str) -> None:
        self.logged[part] = [*scores]

    fix = "correct it, or give other rows"

    def _scorer(self, part: str) -> str:
        return f"{type(self.module).__name__}.{part}_step"

    def attached(self) -> AbstractContextManager[None]:
        """Stand in for the module's Trainer."""
        return self.steps.attached()

    def dataset(self, data: FederatedData, part: str = "train") -> DeviceDataset:
        """The rows of a part, which the module gets as one batch."""
        rows = self._rows(data, part)
        try:
            y, classes = data.divided(rows)[1], self._classes(data)
            return DeviceDataset((rows,), y, classes, **owners(data, part))
        except UserError:  # no target is named: only methods that look at labels need it
            return DeviceDataset((rows,), torch.zeros(len(tree_leaves(rows)[0])))

    def evaluation(self, data: DeviceDataset, part: str, every: int) -> Evaluation:
        """The callback that runs the step of a part on the global model."""
        return StepEvaluation(self, data, part, every)

    def scores(
        self,
        data: DeviceDataset,
        part: str,
        index: Tensor | None = None,
        autocast: Autocast = nullcontext,
    ) -> Metrics:
        """What the step of a part logs on some samples, or all, on this rank alone.

        Raises:
            ModelError: If the module has no such step.
        """
        step: Part = "test" if part == "test" else "validation"
        if not self.steps.has(step):
            other = "validation" if step == "test" else "test"
            raise ModelError(
                f"{type(self.module).__name__} has no {step}_step to score the {part} part: write "
                f"one, or give these rows as {other}="
            )
        index = (torch.arange(len(data)) if index is None else index).to(data.device)
        batches = ((len(k), data.inputs(k)[0]) for k in index.split(self.batch_size))
        with autocast():
            return self.steps.evaluate(batches, step)


class StepEvaluation(Evaluation):
    """Adds what `validation_step` or `test_step` log on the global model, by the names given there.

    Every rank runs all batches, so that values are equal on any number of ranks.
    """

    def __init__(self, task: LightningTask, data: DeviceDataset, part: str, every: int):
        super().__init__(data, every, task.batch_size, NAMES[part])
        self.task, self.part = task, part
        self.monitor = next(iter(task.logged.get(part, ())), "train/loss")

    def measure(self, federation: Federation) -> Metrics:
        """Score the global model."""
        federation.load_global()
        self.scored = federation.round
        self.task.steps.stand_in.current_epoch = federation.round
        return self.task.scores(self.test, self.part, autocast=federation.fabric.autocast)


class StepLogs(CohortMeasure):
    """Adds what `training_step` logs: `<name>`, `<name>_std` and `<name>_worst10`.

    A client's number is the mean over its steps. They are the mean over the cohort, weighted by
    samples; the standard deviation; and the mean over the worst tenth of the cohort.

    Args:
        names: The names, in the order in which they are logged.
    """

    def __init__(self, names: Sequence[str]):
        super().__init__(1)
        self.names = names

    def on_client_end(self, federation: Federation, client: int, result: ClientResult) -> None:
        """Keep a client's numbers."""
        self.rows[client] = result.logs.tolist()

    def measure(self, federation: Federation) -> Metrics:
        """The statistics over the cohort."""
        table = self.table(federation, len(self.names)).cpu()
        sizes = federation.clients.sizes[self.counted(federation)]
        metrics = Metrics()
        for name, values in zip(self.names, table.T, strict=True):
            metrics |= over_clients(name, values, sizes)
        return metrics


def task_of(
    module: nn.Module,
    loss: str | TaskLoss | None,
    metrics: Sequence[str] | Mapping[str, Metric],
    batch_size: int,
    given: Iterable[str],
) -> Task:
    """The task of a module.

    Args:
        module: A LightningModule, or a plain one.
        loss: Of a plain module: a name of `LOSSES`, or a function; None is the cross-entropy, or
            the loss that a module of transformers computes itself from the labels of its batch.
        metrics: Of a plain module.
        batch_size: Samples a batch in evaluation.
        given: The options that were given.

    Raises:
        UserError: If they do not fit together.
    """
    if isinstance(module, nn.Module) and not [*module.parameters()]:
        raise UserError(f"{type(module).__name__} has no parameters: there is nothing to train")
    if isinstance(module, LightningModule):
        if loss is not None or metrics:
            raise UserError(
                f"{type(module).__name__} is a LightningModule, whose steps are its loss and "
                "metrics: leave out loss and metrics"
            )
        if "lr" not in given and (useless := [name for name in OF_SGD if name in given]):
            raise UserError(
                f"{useless[0]} is of the local SGD, but configure_optimizers gives the optimizer: "
                "give lr too, or leave it out"
            )
        return LightningTask(module, batch_size, "lr" not in given)
    if not isinstance(module, nn.Module):
        raise UserError(f"the module is a {type(module).__name__}: give a torch.nn.Module")
    if isinstance(loss, str) and loss not in LOSSES:
        raise UserError(f"there is no loss {loss!r}{nearest(loss, LOSSES)}")
    if loss is None and computes_its_loss(module):
        if metrics:
            raise UserError(
                f"{type(module).__name__} computes its own loss of labels that it shifts itself, "
                "which metrics do not know: leave out metrics"
            )
        return Task(module, own_loss, (), batch_size)
    found = LOSSES[loss or "cross_entropy"] if isinstance(loss, str | None) else loss
    if not callable(found):
        raise UserError(f"the loss is {found!r}: give a name, or a function of output and target")
    if isinstance(metrics, str):
        raise UserError(f"metrics is {metrics!r}: give a list, such as metrics=[{metrics!r}]")
    make_metrics(metrics, 0, torch.device("cpu"))
    return Task(module, found, metrics, batch_size)
