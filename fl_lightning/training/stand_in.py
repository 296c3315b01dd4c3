"""What stands in for the Trainer of a LightningModule: `self.trainer`, and what takes its logs."""

from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from math import nan
from numbers import Number
from operator import add
from typing import Any, Literal, NamedTuple

from torch import Tensor, distributed
from torchmetrics import Metric

from fl_lightning.errors import ModelError
from fl_lightning.federation.aggregation import DISTANCES

OF_ROUND = {"round", "train/loss", "local/lr", *DISTANCES}
"""Names of numbers that a round has in any case."""

STATISTICS = "_std", "_worst10"
"""How names of statistics over clients end, besides the mean (see `over_clients`)."""

REDUCTIONS: dict[str, Callable[[float, float], float]] = {
    "mean": add,  # of numbers times their weights
    "sum": add,
    "min": min,
    "max": max,
}
"""How numbers of two batches become one, by `reduce_fx` of `self.log`."""


INSTEAD = {
    "barebones": "call self.log in the place of super().log",  # which reads it first
    "callback_metrics": "the history has what is logged",
    "estimated_stepping_batches": "schedule by rounds, self.trainer.max_epochs",
    "logger": "log numbers by self.log",
    "loggers": "log numbers by self.log",
    "lr_scheduler_configs": "the history has local/lr",  # which self.lr_schedulers() reads
    "max_epochs": "read it in configure_optimizers, or give the module the number of rounds",
    "optimizers": "the history has local/lr",
    "strategy": "the history has local/lr",  # which self.optimizers() reads
}
"""What to do where a module reads what `self.trainer` has not."""


class _Missing(ModelError, AttributeError):
    """What `hasattr(self.trainer, name)` and `getattr` with a default catch."""


class StandIn:
    """What `self.trainer` is in a federation: the round, the step, the model, the rank; no more."""

    sanity_checking = predicting = False
    check_val_every_n_epoch: int  # while `configure_optimizers` runs

    def __init__(self, model: Any) -> None:
        self.model = model
        self.current_epoch: Any = 0
        self.rounds: int | None = None  # while `configure_optimizers` runs
        self.reads_rounds = False
        self.enter("training")

    @property
    def max_epochs(self) -> int:
        """The number of rounds, for a schedule; not for steps: a run may be extended."""
        if self.rounds is None:
            raise AttributeError
        self.reads_rounds = True
        return self.rounds

    @property
    def global_rank(self) -> int:
        """The rank, of which modules print and plot on the first."""
        return distributed.get_rank() if distributed.is_initialized() else 0

    @property
    def is_global_zero(self) -> bool:
        """Whether this is the first rank."""
        return self.global_rank == 0

    def enter(self, part: Literal["training", "validation", "test"]) -> None:
        """Let the next steps be of this part."""
        self.should_stop = False  # which a module may set
        self.training = part == "training"
        self.validating, self.testing = part == "validation", part == "test"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # which copying asks for
            raise AttributeError(name)
        known = (
            "it has self.current_epoch, the round; give the module what else it needs before fit"
        )
        instead = INSTEAD.get(name, known)
        # a property of LightningModule that met an AttributeError would say nothing of `instead`
        error = ModelError if name in INSTEAD else _Missing
        raise error(
            f"a federation has no self.trainer.{name}, which the module reads itself or by a "
            f"method of LightningModule: {instead}"
        )


class Logged(NamedTuple):
    """What a step logs by a name.

    Attributes:
        value: A number or a metric.
        reduction: One of `REDUCTIONS`.
        size: The weight of the batch in a mean; None: its rows.
    """

    value: Any
    reduction: str
    size: int | None


def logged(
    kind: str,
    name: str,
    value: Any,
    prog_bar: bool = False,
    logger: bool | None = None,
    on_step: bool | None = None,
    on_epoch: bool | None = None,
    reduce_fx: str | Callable[..., Any] = "mean",
    *_: Any,
    batch_size: int | None = None,
    **__: Any,
) -> Logged:
    """What `self.log(name, value, ...)` of a module of class `kind` asks for.

    Raises:
        ModelError: If the value is no single number, there is no such reduction, or the name is the
            federation's.
    """
    if name in OF_ROUND:
        raise ModelError(
            f"{kind} logs {name!r}, which is the federation's own number: give it another name"
        )
    number = value.numel() == 1 if isinstance(value, Tensor) else isinstance(value, Number | Metric)
    if not number:
        given = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"{value!r:.60}"
        raise ModelError(f"{kind} logs {name!r} of {given}: log one number")
    reduction = getattr(reduce_fx, "__name__", reduce_fx)
    if reduction not in REDUCTIONS:
        raise ModelError(
            f"{kind} logs {name!r} with reduce_fx={reduction!r}: give one of "
            f"{', '.join(REDUCTIONS)}"
        )
    return Logged(value, reduction, batch_size)


def distinct(names: Iterable[str]) -> list[str]:
    """The names of what a training step logs; a ModelError if one is a statistic of another."""
    for name in (listed := [*names]):
        if shared := [name + end for end in STATISTICS if name + end in listed]:
            raise ModelError(
                f"a training step logs {name!r} and {shared[0]!r}, which names a statistic of the "
                "first over clients: give the second another name"
            )
    return listed


def total(reduction: str, batches: Sequence[tuple[float, int]]) -> float:
    """The number of all batches, of that of each and its weight in a mean; NaN of no rows."""
    numbers = [n * weight if reduction == "mean" else n for n, weight in batches]
    found = reduce(REDUCTIONS[reduction], numbers)
    whole = sum(weight for _, weight in batches) if reduction == "mean" else 1
    return found / whole if whole else nan
