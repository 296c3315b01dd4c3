"""The task of any module."""

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import nn
from torchmetrics import Metric

from fl_lightning.callbacks.metrics import make_metrics
from fl_lightning.core.losses import LOSSES, TaskLoss
from fl_lightning.errors import UserError, nearest
from fl_lightning.training.lightning_hooks import is_lightning
from fl_lightning.training.lightning_task import LightningTask
from fl_lightning.training.task import Task, computes_its_loss, labels_loss


def task_of(
    module: nn.Module,
    loss: str | TaskLoss | None,
    metrics: Sequence[str] | Mapping[str, Metric],
    batch_size: int,
    given: Iterable[str],
) -> Task:
    """The task of a module, of what a FederatedTrainer takes; `given` names its given options.

    Raises:
        UserError: If they do not fit together.
    """
    if isinstance(module, nn.Module) and not [*module.parameters()]:
        raise UserError(f"{type(module).__name__} has no parameters: there is nothing to train")
    if is_lightning(module):
        if loss is not None or metrics:
            raise UserError(
                f"{type(module).__name__} is a LightningModule, whose steps are its loss and "
                "metrics: leave out loss and metrics"
            )
        of_sgd = "momentum", "weight_decay", "lr_decay"
        if "lr" not in given and (useless := [name for name in of_sgd if name in given]):
            raise UserError(
                f"{useless[0]} is of the local SGD, but configure_optimizers gives the optimizer: "
                "give lr too, or leave it out"
            )
        return LightningTask(module, batch_size, "lr" not in given)
    if not isinstance(module, nn.Module):
        raise UserError(f"the module is a {type(module).__name__}: give a torch.nn.Module")
    wrapper, inner = type(module).__name__, next(module.children(), None)
    if wrapper in ("OptimizedModule", "_FabricModule") and is_lightning(inner):
        raise UserError(
            f"{wrapper} hides the steps of the LightningModule {type(inner).__name__}: give that "
            "itself, with compile=True for torch.compile"
        )
    if isinstance(module, nn.DataParallel | nn.parallel.DistributedDataParallel):
        raise UserError(f"{wrapper} spreads batches over devices: give the module in it, .module")
    if isinstance(loss, str) and loss not in LOSSES:
        raise UserError(f"there is no loss {loss!r}{nearest(loss, LOSSES)}")
    if loss is None and computes_its_loss(module):
        if metrics:
            raise UserError(
                f"{type(module).__name__} computes its own loss of labels that it shifts itself, "
                "which metrics do not know: leave out metrics"
            )
        return Task(module, labels_loss(module), (), batch_size)
    found = LOSSES[loss or "cross_entropy"] if isinstance(loss, str | None) else loss
    if not callable(found):
        raise UserError(f"the loss is {found!r}: give a name, or a function of output and target")
    if isinstance(metrics, str):
        raise UserError(f"metrics is {metrics!r}: give a list, such as metrics=[{metrics!r}]")
    make_metrics(metrics, 0, torch.device("cpu"))
    return Task(module, found, metrics, batch_size)
