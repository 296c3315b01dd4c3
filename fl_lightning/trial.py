"""What can be found out before round 1: whether the model takes the data, a sample that is alone in its batch too."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fl_lightning.data import ClientData, Dataset
from fl_lightning.executors.visit import TaskLoss
from fl_lightning.oracle import ModelError
from fl_lightning.sentences import first_sentence

if TYPE_CHECKING:
    from fl_lightning.federation import Federation

ONE_SAMPLE = "more than 1 value per channel"
"""What PyTorch's BatchNorm says of a batch that it cannot normalise."""


def try_out(federation: "Federation", loss: TaskLoss) -> None:
    """Run the model on two samples, and on one if a client has a batch of one; nothing is changed by it.

    Args:
        federation: With its model and data.
        loss: The task's loss.

    Raises:
        ModelError: If the model cannot take them, has too few outputs for the labels, or cannot train on one sample.
    """
    module, clients = federation.module, federation.clients
    data, name = clients.dataset, type(module).__name__
    kind = "images" if len(data.shape) == 3 else "samples"
    try:
        out = _forward(federation, 2)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {first_sentence(error)}"
        raise ModelError(
            f"{name} cannot take {kind} of shape {'x'.join(map(str, data.shape))} ({reason}): "
            f"choose a model that takes them, or {kind} of another size"
        ) from error
    if loss is nn.functional.cross_entropy and isinstance(out, Tensor) and out.ndim == 2:
        highest = int(data.y.max())
        if highest >= out.shape[1]:
            raise ModelError(
                f"{name} has {out.shape[1]} outputs, but there are labels up to {highest} ({data.classes[highest]}): "
                f"give it {len(data.classes)} outputs, one for each class"
            )
    alone = with_single_samples(clients)
    if len(alone) and not _takes_one(federation):
        raise ModelError(f"{name} cannot train {_whom(clients, alone)}; {_mend(clients)}")


def check_pair(train: Dataset, test: Dataset, name: str) -> None:
    """Raises ValueError unless training and test set are of one kind.

    Args:
        train: The training set.
        test: The test set.
        name: Their source.
    """
    if (train.classes, train.shape) != (test.classes, test.shape):
        raise ValueError(
            f"{name} has a training set of {len(train.classes)} classes and samples of shape {train.shape}, and a test "
            f"set of {len(test.classes)} and {test.shape}: give both the same"
        )


def with_single_samples(clients: ClientData) -> Tensor:
    """The clients with a batch of one sample: what is left over at the end of an epoch, if their visits come so far."""
    sizes, size = clients.sizes.long(), clients.batch_size
    batches = (sizes + size - 1) // size
    steps = clients.steps if clients.steps is not None else (clients.epochs * batches).round().clamp(min=1)
    return ((sizes - (batches - 1) * size == 1) & (batches <= steps)).nonzero().flatten()


def single_sample(error: Exception) -> ModelError | None:
    """The error of a batch of one sample that BatchNorm met in training, as a sentence; None if it is another error.

    A term may split batches in parts, which `try_out` cannot know.
    """
    if ONE_SAMPLE not in str(error):
        return None
    return ModelError(
        "BatchNorm cannot train on a single sample, but met one, alone in its batch or in the part of it that the "
        "algorithm looks at: choose a model without BatchNorm (GroupNorm takes any batch), or a --batch-size that "
        "leaves more over"
    )


def _forward(federation: "Federation", samples: int) -> object:
    """The model's output in training mode; running statistics and random numbers stay as they are."""
    module, data = federation.module, federation.clients.dataset
    x = data.inputs(torch.arange(samples, device=data.x.device) % len(data))
    buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
    devices = [federation.w.device] if federation.w.is_cuda else []
    with torch.no_grad(), torch.random.fork_rng(devices), federation.fabric.autocast():
        return functional_call(module.train(), buffers, (x,))


def _takes_one(federation: "Federation") -> bool:
    """Whether the model trains on a single sample: without BatchNorm, or where that sees several pixels."""
    try:
        _forward(federation, 1)
    except ValueError as error:
        if ONE_SAMPLE not in str(error):
            raise
        return False
    return True


def _whom(clients: ClientData, alone: Tensor) -> str:
    first = int(alone[0])
    others = f" and {len(alone) - 1} more" if len(alone) > 1 else ""
    return (
        f"client {first}{others}: its {int(clients.sizes[first])} samples in batches of {clients.batch_size} leave one "
        "alone in the last, and BatchNorm cannot normalise a single sample"
    )


def _mend(clients: ClientData) -> str:
    """A batch size near the chosen one that leaves no sample alone, if there is one, and what else would help."""
    sizes, chosen = clients.sizes.long(), clients.batch_size
    near = sorted(range(2, 2 * chosen + 2), key=lambda size: abs(size - chosen))
    fitting = next((size for size in near if not (sizes % size == 1).any()), None)
    other = f"take --batch-size {fitting}, which leaves none alone, or" if fitting else "choose"
    return f"{other} a model without BatchNorm (GroupNorm takes any batch), or another partition"
