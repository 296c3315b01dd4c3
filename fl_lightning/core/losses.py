"""Losses of the task by name: functions of the model's output and the targets, one number."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves

from fl_lightning.core.stacked_functions import mean_cross_entropy
from fl_lightning.errors import UserError

IGNORED = -100
"""The target of a token that does not count, as in `torch.nn.functional.cross_entropy`."""

TaskLoss = Callable[[Any, Any], Tensor]
"""`loss(output, target)`, averaged over the batch."""


class StepOutput(NamedTuple):
    """What a module returns that computes its own loss, as `training_step` does.

    Attributes:
        loss: The loss, 0-dim.
        logits: What the module's own `forward` returned in the step; None if it was not called.
        logs: What the step logs, 0-dim tensors by name.
    """

    loss: Tensor
    logits: Any
    logs: Mapping[str, Tensor]


def own_loss(out: StepOutput, y: Any) -> Tensor:
    """The loss that the module has computed itself."""
    return out.loss


@dataclass(frozen=True)
class LabelsLoss:
    """The loss that a model of transformers has computed itself from the labels in its batch.

    Attributes:
        shifted: Whether the labels are tokens that the model shifts: the first of a row does not
            count.
    """

    shifted: bool

    def __call__(self, out: Any, y: Any) -> Tensor:
        """The loss in the model's output."""
        return out.loss


def one_number(value: Any, what: str, error: type[UserError]) -> Tensor:
    """The loss, if it is a 0-dim tensor; else raise the error, which begins with `what`."""
    if not isinstance(value, Tensor) or value.ndim:
        got = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"{value!r:.60}"
        raise error(
            f"{what} returned {got}, not one number: return a 0-dim tensor such as the mean over "
            "the batch"
        )
    return value


def scores_of(out: Any) -> Any:
    """The scores in a model's output: its `logits` if it has them, as in transformers."""
    return out if isinstance(out, Tensor) else getattr(out, "logits", out)


def cross_entropy(out: Any, y: Tensor) -> Tensor:
    """Of classes, (n, classes) and (n,), or of tokens, (n, t, classes) and (n, t).

    Raises:
        ValueError: If the classes are not the last dimension of the scores.
    """
    scores = scores_of(out)
    if scores.ndim > 2:
        if scores.shape[:-1] != y.shape:
            raise ValueError(
                f"its scores have classes last, (*targets, classes), not {tuple(scores.shape)}; "
                "torch.nn.functional.cross_entropy has them second"
            )
        scores, y = scores.flatten(0, -2), y.flatten()
    return mean_cross_entropy(scores, y, IGNORED)


def is_cross_entropy(loss: object) -> bool:
    """Whether a loss is `cross_entropy`, PyTorch's, or its `nll_loss`: integers are classes."""
    bare = loss.func if isinstance(loss, partial) else loss
    known = cross_entropy, F.cross_entropy, F.nll_loss
    return isinstance(bare, nn.CrossEntropyLoss | nn.NLLLoss) or bare in known


def is_binary(loss: object) -> bool:
    """Whether a loss is `binary_cross_entropy` or PyTorch's of logits: targets are from 0 to 1."""
    bare = loss.func if isinstance(loss, partial) else loss
    known = binary_cross_entropy, F.binary_cross_entropy_with_logits
    return isinstance(bare, nn.BCEWithLogitsLoss) or bare in known


def is_mean_cross_entropy(loss: TaskLoss) -> bool:
    """Whether a loss has the value of `cross_entropy` on an example; the module's own has none."""
    scores, y = torch.arange(12.0).view(3, 4).sin(), torch.tensor([0, 2, 1])
    try:
        return bool(torch.isclose(loss(scores, y), cross_entropy(scores, y)))
    except Exception:  # it takes other targets
        return False


def option(loss: object, name: str, default: Any) -> Any:
    """An option of a loss that is a module or a partial function."""
    return getattr(loss, "keywords", {}).get(name, getattr(loss, name, default))


def counted(loss: object, y: Any) -> Tensor | int:
    """How many rows a batch's mean loss is of: its weight in the mean over a data set.

    A cross entropy, also one of transformers, leaves out targets of -100, or of the loss's
    `ignore_index`: each target is one part of its row. With weights of classes a target counts by
    the weight of its class.
    """
    rows = len(tree_leaves(y)[0])
    if not ((isinstance(loss, LabelsLoss) or is_cross_entropy(loss)) and y.dtype == torch.int64):
        return rows
    if isinstance(loss, LabelsLoss) and loss.shifted and y.ndim > 1:
        y = y[:, 1:]
    counts = y != option(loss, "ignore_index", IGNORED)
    weight = option(loss, "weight", None)
    each = counts if weight is None else weight[y.where(counts, 0)] * counts
    return each.sum().double() / (y.numel() // rows)


def mse(out: Any, y: Tensor) -> Tensor:
    """The mean squared error; `y` has as many numbers as the output."""
    scores = scores_of(out)
    return F.mse_loss(scores, like(y, scores))


def binary_cross_entropy(out: Any, y: Tensor) -> Tensor:
    """Of scores and targets from 0 to 1, of one label or of several at once."""
    scores = scores_of(out)
    return F.binary_cross_entropy_with_logits(scores, like(y, scores))


def like(y: Tensor, scores: Tensor) -> Tensor:
    """Targets in shape and dtype of the scores, e.g. (n,) as (n, 1)."""
    return y.to(scores.dtype).view_as(scores)


LOSSES: dict[str, TaskLoss] = {f.__name__: f for f in (cross_entropy, mse, binary_cross_entropy)}
"""The losses by name."""
