"""Objects of a user's module as texts, by which a run's configuration has them."""

from collections import Counter
from collections.abc import Mapping
from functools import partial
from inspect import signature
from typing import Any

from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler

SIMPLE = bool, int, float, str, tuple, type(None)
"""The values of options that are copied and shown."""


def call_text(kind: Any, options: Mapping[str, Any]) -> str:
    """A call of a class or function with those options that are no defaults.

    Example:
        >>> import torch
        >>> call_text(torch.optim.SGD, {"lr": 0.1, "momentum": 0})
        'SGD(lr=0.1)'
    """
    defaults = {p.name: _plain(p.default) for p in signature(kind).parameters.values()}
    given = {name: _plain(value) for name, value in options.items()}
    shown = [
        f"{k}={v!r}"
        for k, v in given.items()
        if k in defaults and k != "last_epoch" and isinstance(v, SIMPLE)
        if v not in (defaults[k], (defaults[k],))  # of the one group
    ]
    return f"{kind.__name__}({', '.join(shown)})"


def _plain(value: Any) -> Any:
    """A tensor as a number, or as a tuple of its numbers; functions and schedulers as texts."""
    if isinstance(value, Tensor):
        return value.item() if value.numel() == 1 else tuple(value.flatten().tolist())
    if isinstance(value, Counter):  # the milestones of MultiStepLR
        value = sorted(value.elements())
    if isinstance(value, list):
        return tuple(map(_plain, value))
    if callable(value):
        return loss_text(value)
    return call_text(type(value), public(value)) if isinstance(value, LRScheduler) else value


def public(scheduler: Any) -> dict[str, Any]:
    """The attributes of a scheduler by the names of its arguments, such as max_lr of max_lrs."""
    own = {name.lstrip("_"): value for name, value in vars(scheduler).items()}
    return own | {name.removesuffix("s"): value for name, value in own.items()}


def loss_text(loss: Any) -> str:
    """The name of a loss, with its options if it is a module or a partial function.

    Example:
        >>> loss_text(nn.CrossEntropyLoss(label_smoothing=0.1))
        'CrossEntropyLoss(label_smoothing=0.1)'
    """
    if isinstance(loss, nn.Module):
        return call_text(type(loss), vars(loss) | dict(loss.named_buffers()))
    if isinstance(loss, partial) and hasattr(loss.func, "__name__"):
        return call_text(loss.func, loss.keywords)
    return getattr(loss, "__name__", type(loss).__name__)
