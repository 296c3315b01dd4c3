"""A LightningModule as a task."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from lightning import LightningModule
from lightning.pytorch.utilities.parsing import clean_namespace
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from fl_lightning.callbacks.bases import CohortMeasure, over_clients
from fl_lightning.callbacks.metrics import larger_is_better
from fl_lightning.callbacks.scoring import Autocast, Evaluation
from fl_lightning.core.algorithm import Algorithm, local_sgd
from fl_lightning.core.losses import own_loss
from fl_lightning.data import DeviceDataset
from fl_lightning.data.dataset import is_image
from fl_lightning.data.federated import FederatedData
from fl_lightning.errors import ModelError, UserError
from fl_lightning.executors import ClientResult
from fl_lightning.federation.federation import Federation, Metrics
from fl_lightning.files import atomic
from fl_lightning.training.lightning_hooks import is_lightning
from fl_lightning.training.lightning_module import Part, StepModel
from fl_lightning.training.lightning_optimizer import is_plain_sgd, local_optimizer
from fl_lightning.training.lightning_scheduler import Plateau
from fl_lightning.training.task import NAMES, Task, owners


class LightningTask(Task):
    """A LightningModule: its steps are loss and scores, `configure_optimizers` the optimizer.

    Raises:
        ModelError: If no federation can train it.
    """

    fix = "correct it, or give other rows"

    def __init__(self, module: LightningModule, batch_size: int, own_optimizer: bool):
        self.steps, self.own_optimizer = StepModel(module), own_optimizer
        self.optimizer = ""  # as text, if it is the module's own
        self.plateau: Plateau | None = None  # its scheduler, if that waits for a score
        self.logged = dict[str, list[str]]()  # the names of the scores of each part
        self.replaces = False  # whether it takes the place of an algorithm's
        self.scaled = False  # whether rows have images whose numbers are divided by 255
        self.unscored = list[str]()  # the parts of the data that the module has no step for
        super().__init__(module, own_loss, (), batch_size)

    @property
    def model(self) -> nn.Module:
        """The module with its training step as `forward`."""
        return self.steps

    def with_optimizer(self, algorithm: Algorithm, rounds: int, evaluate_every: int) -> Algorithm:
        """The algorithm with the module's optimizer and scheduler, unless options give it."""
        if not self.own_optimizer:
            return algorithm
        assert is_lightning(self.module)
        self.replaces = algorithm.local is not local_sgd or algorithm.lr is not None
        stand_in = self.steps.stand_in
        stand_in.rounds, stand_in.check_val_every_n_epoch = rounds, evaluate_every
        local, lr, self.optimizer = local_optimizer(self.module, rounds)
        if "momentum" not in algorithm.sgd_options and not is_plain_sgd(local):
            name = type(self.module).__name__
            raise ModelError(
                f"{algorithm!r:.80} has an optimizer of its own, along whose direction the one "
                f"of {name}.configure_optimizers, {self.optimizer}, would step: let it return SGD "
                "without momentum and weight decay, or give lr="
            )
        self.plateau = lr if isinstance(lr, Plateau) else None
        stand_in.rounds = None
        del stand_in.check_val_every_n_epoch
        if stand_in.reads_rounds:  # then it is another one where a run is extended
            self.optimizer += f", of {rounds} rounds"
        return algorithm.replace(local=local, lr=lr)

    @property
    def recorded(self) -> dict[str, Any]:
        """The module's hyperparameters that are single values, and its optimizer."""
        given, simple = self.steps.lightning_module.hparams, bool | int | float | str | None
        values = {k: v for k, v in given.items() if isinstance(v, simple)}
        own = {"configure_optimizers": self.optimizer} if self.optimizer else {}
        return {k: v for k, v in values.items() if k != "name"} | own

    @property
    def callbacks(self) -> list[Any]:
        """What publishes the numbers that `training_step` logs, and the scheduler after it."""
        logs = [StepLogs(self.steps.logs)] if self.steps.logs else []
        return [*logs, self.plateau] if self.plateau else logs

    @property
    def notes(self) -> list[str]:
        """What metrics do not do here, and which parts stay in evaluation mode, if there are."""
        name, found = type(self.module).__name__, list[str]()
        if self.steps.rests:
            found.append(
                f"note: metrics rest in {name}.training_step, as parallel clients cannot keep "
                "their sums: log numbers there"
            )
        if self.replaces:
            found.append(
                f"note: {name}.configure_optimizers replaces the local optimizer and learning rate "
                "of the algorithm"
            )
        if self.steps.logs_loss:
            found.append(
                f"note: train/loss is the mean of the losses over clients, not what {name} logs by "
                "this name"
            )
        silent = [part for part, names in self.logged.items() if not names]
        for part in (*self.unscored, *silent):
            why = f".{part}_step logs nothing" if part in silent else f" has no {part}_step"
            found.append(f"note: {name}{why}, so the {part} part is not scored")
        if self.scaled:
            found.append(f"note: images of type uint8 reach {name} as floating numbers from 0 to 1")
        if self.steps.anew:
            found.append(
                f"note: {name}.{self.steps.anew} begins anew in each evaluation: take what counts "
                "over rounds, such as a maximum, from the history"
            )
        if still := self.steps.still:
            first = next(path for path, part in self.module.named_modules() if part is still[0])
            found.append(
                f"note: {name}.{first} is in evaluation mode and stays so, as in a Trainer: call "
                "train() before fit to train its dropout and BatchNorm"
            )
        return found

    def _scored(self, scores: Metrics, part: str) -> None:
        steps = {"training": self.steps.logs or (), **self.logged}
        for other, names in steps.items():
            if shared := sorted(scores.keys() & {*names}):
                raise ModelError(
                    f"{type(self.module).__name__} logs {shared[0]!r} in {other}_step and in "
                    f"{part}_step, but a round has one number of each name: give them two names"
                )
        self.logged[part] = [*scores]

    def check_scores(self) -> None:
        """Find the score that the scheduler waits for; a ModelError if no step logs it."""
        known = ["train/loss", *(self.steps.logs or ()), *chain(*self.logged.values())]
        if (one := self.plateau) and one.monitor not in known:
            short = one.monitor.removesuffix("_epoch")  # which Lightning adds to what steps log
            if one.strict and short not in known:
                raise ModelError(
                    f"the ReduceLROnPlateau of {type(self.module).__name__} monitors "
                    f"{one.monitor!r}, but a round records {', '.join(known)}: monitor one of "
                    "these, or give the part that has it, as FederatedData(validation=0.2) does"
                )
            one.monitor = short

    def _scorer(self, part: str) -> str:
        return f"{type(self.module).__name__}.{part}_step"

    def attached(self) -> AbstractContextManager[None]:
        """Stand in for the module's Trainer."""
        return self.steps.attached()

    def dataset(self, data: FederatedData, part: str = "train") -> DeviceDataset:
        """The rows of a part, which the module gets as one batch."""
        rows, classes = self._rows(data, part), tuple[str, ...]()
        self.scaled |= any(map(is_image, tree_leaves(rows)))
        y: Any = torch.zeros(len(tree_leaves(rows)[0]))
        with suppress(UserError):  # no target is named: only methods that look at labels need it
            x, target = data.divided(rows)
            if target is not x:  # a lone tensor has no target beside it
                y, classes = target, self._classes(data)
        if isinstance(y, Tensor) and is_image(y):
            raise UserError(
                f"the target of {part} has the type of images, uint8 {tuple(y.shape)}, which reach "
                "the model from 0 to 1: give int64 for classes, or floating numbers"
            )
        return DeviceDataset((rows,), y, classes, **owners(data, part))

    def scores_part(self, part: str) -> bool:
        """Whether the module has the step of a part of the data."""
        found = self.steps.has("test" if part == "test" else "validation")
        if not found and part not in self.unscored:
            self.unscored.append(part)
        return found

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

    def larger_is_better(self, name: str) -> bool:
        """As of any task, by the metrics that the steps log."""
        return larger_is_better(name, self.steps.metrics_by_name.get(name))

    def export(self, folder: Path, rounds: int) -> None:
        """Write `model.ckpt`, which `load_from_checkpoint` reads."""
        module = self.steps.lightning_module
        content: dict[str, Any] = {
            "epoch": rounds,
            "global_step": 0,
            "pytorch-lightning_version": version("lightning"),
            "state_dict": {k: t.cpu().clone() for k, t in module.state_dict().items()},
        }
        if module.hparams:
            content["hparams_name"] = module._hparams_name
            content["hyper_parameters"] = dict(module.hparams)
            clean_namespace(content["hyper_parameters"])  # of what cannot be written, as a Trainer
        module.on_save_checkpoint(content)
        with atomic(folder / "model.ckpt") as file:
            torch.save(content, file)


class StepEvaluation(Evaluation):
    """Adds what `validation_step` or `test_step` log on the global model, by the names given there.

    Every rank runs all batches, so that values are equal on any number of ranks.
    """

    def __init__(self, task: LightningTask, data: DeviceDataset, part: str, every: int):
        super().__init__(data, every, task.batch_size, NAMES[part])
        self.task, self.part = task, part
        self.directions = {name: task.larger_is_better(name) for name in task.logged.get(part, ())}

    def measure(self, federation: Federation) -> Metrics:
        """Score the global model."""
        federation.load_global()
        self.scored = federation.round
        stand_in = self.task.steps.stand_in
        stand_in.current_epoch = federation.round - 1  # as in the steps before
        scores = self.task.scores(self.test, self.part, autocast=federation.fabric.autocast)
        federation.should_stop |= stand_in.should_stop
        return scores


class StepLogs(CohortMeasure):
    """Adds what `training_step` logs: `<name>`, `<name>_std` and `<name>_worst10`.

    A client's number is the mean over its steps. They are the mean over the cohort, weighted by
    samples; the standard deviation; and the mean over the worst tenth of the cohort. `names` are in
    the order in which they are logged.
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
