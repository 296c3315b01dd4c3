"""What the options of several algorithms mean."""

from functools import partial
from math import inf
from typing import Literal

from torch.optim import SGD

from fl_lightning import terms
from fl_lightning.core.algorithm import OptimizerFactory
from fl_lightning.core.term import Initializer, Term, initial, received
from fl_lightning.core.weighting import Weight, by_size, uniform
from fl_lightning.terms import drift

Weighting = Literal["uniform", "by_size"]
WEIGHTS: dict[str, Weight] = {"uniform": uniform, "by_size": by_size}

First = Literal["init", "skip"]
FIRST: dict[str, Initializer] = {"init": initial, "skip": received}

Length = Literal["current", "base"]
LENGTHS: dict[str, drift.Scale] = {"current": drift.own_span, "base": drift.nominal}

Dual = Literal["all", "active"]
ProxClip = Literal["whole", "split"]


def at(server_lr: float) -> OptimizerFactory:
    """The server moves by `server_lr` times the update.

    Raises:
        ValueError: If it is not a positive number.
    """
    if not 0 < server_lr < inf:
        raise ValueError(f"the server's learning rate is a positive number, not {server_lr}")
    return partial(SGD, lr=server_lr)


def scale_of(size_weighting: bool) -> drift.Scale:
    """What divides a coefficient: the client's relative size, or 1."""
    return drift.om if size_weighting else drift.one


def dynamic(
    lam: float,
    dual: str = "all",
    prox_clip: str = "whole",
    size_weighting: bool = False,
    share: float | None = None,
) -> tuple[Term, ...]:
    """FedDyn's regulariser in the flavours that its descendants offer."""
    split, scale = prox_clip == "split", scale_of(size_weighting)
    regularizer = {"all": terms.DynamicRegularizer, "active": terms.CohortDual}[dual](
        lam, scale, share, split
    )
    return (regularizer, terms.UnclippedPull(lam, scale)) if split else (regularizer,)
