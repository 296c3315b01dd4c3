"""The optimizer and the scheduler of a LightningModule, as a client's."""

from collections.abc import Sequence
from functools import partial
from inspect import signature
from typing import Any, cast

from lightning import LightningModule
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from fl_lightning.core.algorithm import LocalFactory
from fl_lightning.core.curves import OfRound
from fl_lightning.errors import ModelError, first_sentence


def local_optimizer(module: LightningModule, rounds: int) -> tuple[LocalFactory, OfRound]:
    """The client's optimizer that `configure_optimizers` gives, and its learning rates.

    A scheduler is run ahead, one step a round.

    Raises:
        ModelError: If there is none, or more than one optimizer, group or scheduler, or if it does
            not take all trainable parameters.
    """
    name, given = type(module).__name__, cast(Any, module.configure_optimizers())
    if isinstance(given, dict):
        given = [given["optimizer"]], [s] if (s := given.get("lr_scheduler")) else []
    pair = (
        isinstance(given, tuple | list) and len(given) == 2 and isinstance(given[0], list | tuple)
    )
    optimizers, schedulers = given if pair else (given, [])
    optimizers = optimizers if isinstance(optimizers, list | tuple) else [optimizers]
    if not (len(optimizers) == 1 and isinstance(optimizers[0], Optimizer)):
        found = ", ".join(type(optimizer).__name__ for optimizer in optimizers)
        raise ModelError(
            f"{name}.configure_optimizers returned {found}: return one optimizer, or give lr="
        )
    optimizer = optimizers[0]
    if len(optimizer.param_groups) > 1 or len(schedulers) > 1:
        raise ModelError(
            f"{name}.configure_optimizers has several parameter groups or schedulers: a client's "
            "optimizer has one; or give lr="
        )
    taken = {id(p) for p in optimizer.param_groups[0]["params"]}
    left = [n for n, p in module.named_parameters() if p.requires_grad and id(p) not in taken]
    if left:
        raise ModelError(
            f"{name}.configure_optimizers leaves out {left[0]}, but a client trains all that is "
            "trainable: freeze it by requires_grad_(False), or give lr="
        )
    settings = {k: v for k, v in optimizer.param_groups[0].items() if k in optimizer.defaults}
    settings["lr"] = optimizer.defaults["lr"]
    accepted = signature(type(optimizer)).parameters
    settings = {k: v for k, v in settings.items() if k in accepted}
    lr = settings["lr"]
    factors = _factors(name, optimizer, schedulers, lr, rounds)
    return partial(type(optimizer), **settings), lambda t, _: lr * factors[min(t, rounds - 1)]


def _factors(
    name: str, optimizer: Optimizer, schedulers: Sequence[Any], lr: float, rounds: int
) -> list[float]:
    """The factor on the learning rate in each round."""
    if not schedulers:
        schedulers = [LambdaLR(optimizer, lambda _: 1.0)]
    one = schedulers[0] if isinstance(schedulers[0], dict) else {"scheduler": schedulers[0]}
    if one.get("interval", "epoch") != "epoch" or one.get("frequency", 1) != 1:
        raise ModelError(
            f"the scheduler of {name} has another interval than one epoch: a federation takes one "
            "step a round; leave out interval and frequency"
        )
    factors = list[float]()
    try:
        for _ in range(rounds):
            factors.append(optimizer.param_groups[0]["lr"] / lr)
            optimizer.step()
            one["scheduler"].step()
    except (TypeError, ValueError) as error:
        raise ModelError(
            f"optimizer or scheduler of {name} cannot take {rounds} steps ahead "
            f"({first_sentence(error)}): use others, or give lr="
        ) from error
    return factors
