"""A task: a module with its loss, its local optimizer, and how it is scored."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch
from lightning.fabric import Fabric
from torch import Tensor, nn
from torch.nn.functional import pad
from torch.utils._pytree import tree_map
from torchmetrics import Metric

from fl_lightning.callbacks.metrics import larger_is_better, make_metrics, results
from fl_lightning.callbacks.scoring import Autocast, Evaluation, score
from fl_lightning.core.algorithm import Algorithm
from fl_lightning.core.losses import LabelsLoss, TaskLoss, is_cross_entropy, own_loss
from fl_lightning.core.vector import Layout
from fl_lightning.data import DeviceDataset
from fl_lightning.data.dataset import rows as count
from fl_lightning.data.federated import FederatedData
from fl_lightning.errors import UserError, first_sentence
from fl_lightning.federation.federation import Metrics
from fl_lightning.federation.loss_trials import check_binary
from fl_lightning.federation.mean_loss import modes_kept
from fl_lightning.runs.chosen import number_names

NAMES = {"test": "test", "validation": "val"}
"""The first part of the names of scores, by the part of the data."""


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
    _made: dict[Any, dict[str, Metric]] = field(default_factory=dict, init=False, repr=False)

    fix: ClassVar[str] = "choose other metrics, or other targets"
    """What to do if the scores cannot be computed."""

    @property
    def model(self) -> nn.Module:
        """What the federation trains."""
        return self.module

    def with_optimizer(self, algorithm: Algorithm, rounds: int, evaluate_every: int) -> Algorithm:
        """The algorithm with the local optimizer and the learning rates of the task, if any."""
        return algorithm

    @property
    def recorded(self) -> dict[str, Any]:
        """What a run's configuration holds of the module beside its name."""
        return {}

    @property
    def callbacks(self) -> list[Any]:
        """Callbacks that the task needs, after a dry run of the model."""
        return []

    @property
    def notes(self) -> list[str]:
        """Sentences for the user, after a dry run of the model."""
        return []

    def try_out(self, data: DeviceDataset, part: str) -> None:
        """Score the module on the first samples; a UserError if a metric cannot take them."""
        check_binary(self.loss, data)
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

    def _scorer(self, part: str) -> str:
        return f"a metric of {', '.join(self.metrics)}" if self.metrics else "the loss"

    def _scored(self, scores: Metrics, part: str) -> None:
        """Take note of the first scores of a part."""

    def check_scores(self) -> None:
        """Raise a UserError if the task needs a score that no part has, once each was tried."""

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
        if isinstance(self.loss, LabelsLoss):
            x = rows
        elif part == "train":
            _check_shifted(x, y)
        return DeviceDataset(x, y, self._classes(data), unit=data.unit, **owners(data, part))

    def _rows(self, data: FederatedData, part: str) -> Any:
        if (rows := getattr(data, part)) is None:
            raise UserError(f"the data have no {part} part: give FederatedData {part}=0.2")
        dtype = next(self.module.parameters()).dtype
        return tree_map(lambda t: t.to(dtype) if t.is_floating_point() else t, rows)

    def _classes(self, data: FederatedData) -> tuple[str, ...]:
        """The names of the classes, numbers if they have none; none if targets are no classes."""
        own = isinstance(self.loss, LabelsLoss) or self.loss is own_loss
        if data.classes or not (own or is_cross_entropy(self.loss)):
            return data.classes
        parts = [rows for rows in (data.train, data.test, data.validation) if rows is not None]
        targets = [data.divided(rows)[1] for rows in parts]
        return number_names(*targets)

    def scores_part(self, part: str) -> bool:
        """Whether the task can score a part of the data."""
        return True

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
        kind = len(data.classes), data.device
        if kind not in self._made:  # to make them for each client took half of its time
            self._made[kind] = make_metrics(self.metrics, *kind)
        metrics = self._made[kind]
        for metric in metrics.values():
            metric.reset()  # of what an interrupted evaluation has seen
        size, model = self.batch_size, self.module.eval()
        right, total, seen = score(model, data, index, self.loss, autocast, size, metrics.values())
        own = {"accuracy": right.double().mean().item()} if data.classes else {}
        found = own | {"loss": (total / seen).item()} | results(metrics)
        return {f"{NAMES[part]}/{name}": value for name, value in found.items()}

    def scores_of_groups(
        self, fabric: Fabric, data: FederatedData, part: str, groups: Sequence[Tensor | None]
    ) -> list[Metrics]:
        """The `scores` on groups of rows of a part, on Fabric's device; None is all rows.

        The module is afterwards where and as it was.
        """
        home = next(self.module.parameters()).device
        dataset = self.dataset(data, part).to(fabric.device)
        with modes_kept(self.module), self.attached():
            self.to(fabric.device)
            try:
                return [self.scores(dataset, part, rows, fabric.autocast) for rows in groups]
            finally:
                self.to(home)

    def to(self, device: torch.device) -> None:
        """Move the module and the loss, whose weights of classes the user left where they were."""
        for part in (self.module, self.loss):
            if isinstance(part, nn.Module):
                part.to(device)

    def export(self, folder: Path, rounds: int) -> None:
        """Write further files of the trained module."""

    def larger_is_better(self, name: str) -> bool:
        """Whether larger values of a score are better: as its metric says, else by its name."""
        short, given = name.rpartition("/")[2].removesuffix("_worst10"), self.metrics
        return larger_is_better(short, given.get(short) if isinstance(given, Mapping) else None)

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Lend the user's module to a federation, which trains it in place.

        Afterwards it is in training mode on the device where it was. Its parameters have storage of
        their own, and are frozen or trainable as before.

        Raises:
            UserError: If there is nothing to train, or a parameter has no shape yet.
        """
        Layout(self.model)
        trainable = [(p, p.requires_grad) for p in self.module.parameters()]
        home = trainable[0][0].device
        try:
            with self.attached():
                yield
        finally:
            for p, before in trainable:
                p.data = p.data.clone()
                p.requires_grad_(before)
            self.model.train()
            self.to(home)


def _check_shifted(x: Any, y: Any) -> None:
    """Refuse tokens as their own targets, which a model learns to copy."""
    tokens = all(isinstance(t, Tensor) and t.dtype == torch.int64 for t in (x, y))
    if tokens and x[:8].equal(y[:8]):
        raise UserError(
            "the targets are the tokens themselves, which a model learns to copy: shift them by "
            "one, as in FederatedData((tokens[:, :-1], tokens[:, 1:]), ...), or give a model of "
            "transformers, which shifts them itself"
        )


def computes_its_loss(module: nn.Module) -> bool:
    """Whether a module is of transformers, so that its output has the loss of its labels.

    Peft's adapters may be around it, as around any module.
    """
    adapted = getattr(module, "get_base_model", None)
    inner = type(adapted() if adapted else module)  # by name, since transformers is an extra
    return any(base.__name__ == "PreTrainedModel" for base in inner.__mro__)


def labels_loss(module: Any) -> LabelsLoss:
    """The loss of a model of transformers; one of next tokens shifts its labels."""
    predicts_next = getattr(module.loss_function, "__name__", "") == "ForCausalLMLoss"
    return LabelsLoss(predicts_next and not module.config.is_encoder_decoder)


def owners(data: FederatedData, part: str) -> dict[str, Any]:
    """The owner of each row of a part as its domain; nothing if rows to score have no owners."""
    owned = data.partition if part == "train" else data.parts.get(part)
    if owned is None or not data.parts:
        return {}
    missing = count(getattr(data, part)) - len(owner := owned.owners())
    return {"domains": pad(owner, (0, missing)), "domain_names": tuple(data.names)}
