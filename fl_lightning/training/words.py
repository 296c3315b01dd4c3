"""What a program is told, and what is recorded of the objects that it gives, in words."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from inspect import signature
from shlex import split
from typing import Any

from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler

from fl_lightning.errors import UserError

CONTINUE = re.compile(r"--run-dir ('.*'|\S+) --resume")
NO_FLAG = r"(?<!tensorboard )(?<!srun )(?<![\w./-])"  # of another program; in a name
FLAG = re.compile(NO_FLAG + r"--(?:[a-z]+\.)?([a-z][a-z-]*)(?: (\d+(?:[.,]\d+)*)(?![\w-]))?")


def as_arguments(sentence: str) -> str:
    """The sentence with arguments in the place of flags.

    Example:
        >>> as_arguments("use --batch-size 5, or add --resume")
        'use batch_size=5, or add fit(..., resume=True)'
        >>> as_arguments("srun --ntasks 2 in my--run")
        'srun --ntasks 2 in my--run'
    """
    return FLAG.sub(_argument, CONTINUE.sub(_continue, sentence))


def _continue(command: re.Match[str]) -> str:
    return f'run_dir="{split(command[1])[0]}" and --resume'


def _argument(flag: re.Match[str]) -> str:
    name, value = flag[1].replace("-", "_"), flag[2]
    if name == "resume":
        return "fit(..., resume=True)"
    if value and "," in value:
        return f"{name}=[{value.replace(',', ', ')}]"
    return f"{name}={value}" if value else name


@contextmanager
def speaking_of_arguments() -> Iterator[None]:
    """Let a UserError name arguments in the place of flags."""
    try:
        yield
    except UserError as error:
        error.args = (as_arguments(str(error)),)
        if notes := getattr(error, "__notes__", []):
            notes[:] = map(as_arguments, notes)
        raise


SIMPLE = bool, int, float, str, tuple, type(None)
"""The values of options that are copied and shown."""


def call_text(kind: Any, options: Mapping[str, Any]) -> str:
    """A call of a class or function with those options that are no defaults.

    Example:
        >>> import torch
        >>> call_text(torch.optim.SGD, {"lr": 0.1, "momentum": 0})
        'SGD(lr=0.1)'
    """
    defaults = {p.name: p.default for p in signature(kind).parameters.values()}
    given = {name: _plain(value) for name, value in options.items()}
    shown = [
        f"{k}={v!r}"
        for k, v in given.items()
        if k in defaults and k != "last_epoch" and isinstance(v, SIMPLE) and v != defaults[k]
    ]
    return f"{kind.__name__}({', '.join(shown)})"


def _plain(value: Any) -> Any:
    """A tensor as a number, or as a tuple of its numbers; likewise the parts of a scheduler."""
    if isinstance(value, Tensor):
        return value.item() if value.numel() == 1 else tuple(value.flatten().tolist())
    if isinstance(value, Counter):  # the milestones of MultiStepLR
        value = sorted(value.elements())
    if isinstance(value, list):
        return tuple(map(_plain, value))
    return call_text(type(value), public(value)) if isinstance(value, LRScheduler) else value


def public(scheduler: Any) -> dict[str, Any]:
    """The attributes of a scheduler by the names of its arguments."""
    return {name.lstrip("_"): value for name, value in vars(scheduler).items()}


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
