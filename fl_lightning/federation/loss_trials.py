"""Trials of the loss on two samples, before the first round."""

import warnings
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from fl_lightning.core.losses import (
    IGNORED,
    TaskLoss,
    cross_entropy,
    is_binary,
    is_cross_entropy,
    like,
    one_number,
    option,
    scores_of,
)
from fl_lightning.core.network import class_name
from fl_lightning.data.columns import blocks
from fl_lightning.data.dataset import DeviceDataset
from fl_lightning.errors import ModelError, first_sentence


def check_classes(loss: TaskLoss, out: Any, data: DeviceDataset, module: nn.Module) -> None:
    """Raise a ModelError unless the outputs have a class for each target that counts."""
    y, ignored = data.y, option(loss, "ignore_index", IGNORED)
    classes = isinstance(y, Tensor) and y.dtype == torch.int64
    if not (classes and getattr(out, "ndim", 0) == y.ndim + 1):
        return  # which the loss refuses
    outputs = out.shape[-1 if loss is cross_entropy else 1]
    for block in blocks(y):
        wrong = block[(block != ignored) & ((block < 0) | (block >= outputs))]
        if len(wrong):
            raise ModelError(
                f"{class_name(module)} has {outputs} outputs, but a target is {wrong[0]}: count "
                f"classes from 0, and give it {len(data.classes) or int(y.max()) + 1} outputs"
            )


def check_binary(loss: TaskLoss, data: DeviceDataset) -> None:
    """Raise a ModelError unless all targets of a binary cross entropy lie from 0 to 1."""
    fix = "choose another loss, such as mse or cross_entropy"
    if data.unit != (0, 1):
        fix = "give --data.standardize-target false"
    for block in blocks(data.y) if is_binary(loss) else ():
        wrong = block[(block < 0) | (block > 1)]
        if len(wrong):
            name = getattr(loss, "__name__", type(loss).__name__)
            raise ModelError(
                f"the loss {name} takes targets from 0 to 1, but one is {wrong[0]:g}: {fix}"
            )


def checked_loss(
    loss: TaskLoss, out: Any, y: Any, data: DeviceDataset, module: nn.Module
) -> Tensor:
    """The loss of two samples of the data.

    Raises:
        ModelError: If it cannot be computed, is no mean, has weights to train, broadcasts outputs
            and targets, or is binary and has targets outside of 0 to 1.
    """
    name = getattr(loss, "__name__", type(loss).__name__)
    if (reduction := option(loss, "reduction", "mean")) not in ("mean", "batchmean"):
        raise ModelError(f"{name} has the reduction {reduction!r}: give reduction='mean'")
    own = {*loss.parameters()} - {*module.parameters()} if isinstance(loss, nn.Module) else ()
    if any(p.requires_grad for p in own):
        raise ModelError(
            f"the loss {name} has weights of its own, which no client trains: freeze them by "
            f"loss.requires_grad_(False), or let {class_name(module)} have and return them"
        )
    whole = isinstance(y, Tensor) and not y.is_floating_point() and y.dtype != torch.int64
    try:
        if is_cross_entropy(loss) and whole:  # of uint8, which PyTorch takes, -100 would be 156
            raise TypeError("classes are int64, as y.long() makes them")
        returned = loss(out, y)
    except ModelError:
        raise
    except Exception as error:
        kinds = ", ".join(f"{t.dtype} of shape {tuple(t.shape)}" for t in tree_leaves(y))
        such, too = "", ""
        if is_cross_entropy(loss):
            such, too = ", such as mse,", "; of a table, name the classes"
        if not isinstance(scores_of(out), Tensor):
            such = f", a function of the {type(out).__name__} that the model returns,"
        raise ModelError(
            f"the loss {name} cannot compare the output of {class_name(module)} with two targets, "
            f"{kinds} ({first_sentence(error)}): choose another loss{such} or other targets{too}"
        ) from error
    value = one_number(returned, "the loss of the task", ModelError)
    check_binary(loss, data)
    if _compares_each_with_each(loss, out, y, data):
        raise ModelError(
            f"the loss compares outputs of shape {tuple(out.shape)} with targets of shape "
            f"{tuple(y.shape)} as if each output were of each target: give them one shape, as "
            "out.squeeze(-1) does"
        )
    if _is_a_sum(loss, out, y, value):
        warnings.warn(
            f"the loss {name} is a sum over a batch, so train/loss and test/loss depend on the "
            "size of batches: divide it by the number of samples for a mean",
            stacklevel=2,
        )
    return value


def _compares_each_with_each(loss: TaskLoss, out: Any, y: Any, data: DeviceDataset) -> bool:
    """Whether broadcasting (n, 1) and (n,) to (n, n) makes a loss another one.

    Equal outputs or targets do not show it, so that targets that differ are also their own outputs.
    """
    tensors = isinstance(out, Tensor) and isinstance(y, Tensor)
    if not tensors or out.shape == y.shape or out.numel() != y.numel():
        return False
    first = data.y.reshape(len(data), -1)[:, 0].double()
    two = data.targets(torch.stack([first.argmin(), first.argmax()]).to(data.device))
    for scores, targets in ((out, y), (like(two, out), two)):
        try:
            values = loss(scores, targets), loss(scores.reshape(targets.shape), targets)
        except Exception:  # it takes one shape alone
            continue
        if not torch.allclose(*values, rtol=1e-3, equal_nan=True):
            return True
    return False


def _is_a_sum(loss: TaskLoss, out: Any, y: Any, value: Tensor) -> bool:
    """Whether the loss of the samples twice is twice as large."""
    try:
        of_twice = loss(*tree_map(lambda t: torch.cat([t, t]), (out, y)))
    except Exception:  # it is a number that the model has computed itself
        return False
    return bool(value) and torch.allclose(of_twice, 2 * value, rtol=1e-4)
