"""What callbacks are made from: measures of some rounds, and rules that end a run."""

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from math import ceil
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor
from typing_extensions import Doc

from fl_lightning.core.constraints import PositiveInt, check
from fl_lightning.core.randomness import derived_seed, seeded_rng
from fl_lightning.data import DeviceDataset
from fl_lightning.errors import UserError
from fl_lightning.federation.federation import Federation, Metrics
from fl_lightning.runs.scalars import higher_is_better

HOOKS = {
    "on_fit_start": (),
    "on_round_start": ("cohort",),
    "on_client_end": ("client", "result"),
    "on_round_end": ("metrics",),
    "on_last_round_end": ("metrics",),
    "on_round_logged": ("metrics",),
    "on_fit_end": (),
}
"""What a federation calls, with the names of what it gives besides `federation` (see
`fl_lightning.callbacks`)."""


def check_test(data: DeviceDataset, what: str) -> None:
    """Raise a UserError if there are no samples."""
    if not len(data):
        raise UserError(
            f"{what} has no test samples: give some, as FederatedData(test=0.2) does, or leave it "
            "out"
        )


def check_classes(data: DeviceDataset, what: str) -> None:
    """Raise a UserError unless there are samples whose targets are classes."""
    check_test(data, what)
    if not data.classes:
        raise UserError(
            f"{what} needs classes, but the targets of these data are none: leave it out"
        )


@dataclass(eq=False)
class Measure:
    """Adds scalars to every `every`-th round and the last one. All ranks take part.

    Subclasses override `measure`, and the other hooks of a callback where they need them.
    """

    every: Annotated[PositiveInt, Doc("Rounds between measures.")] = 10

    def __post_init__(self) -> None:
        check(self, f" of {type(self).__name__}")

    def measure(self, federation: Federation) -> Metrics:
        """The scalars of the round that has ended, by tag."""
        raise NotImplementedError

    def is_due(self, federation: Federation, round: int) -> bool:
        """Whether a round, from 1, is measured."""
        return round % self.every == 0 or round == federation.rounds

    def on_round_end(self, federation: Federation, metrics: Metrics) -> None:
        if self.is_due(federation, federation.round):
            self._add(federation, metrics)

    def on_last_round_end(self, federation: Federation, metrics: Metrics) -> None:
        """Measure the last round of a run that ends early."""
        if not self.is_due(federation, federation.round):
            self._add(federation, metrics)

    def measured(self, federation: Federation) -> Metrics:
        """What `measure` gives; random numbers of a model depend on seed and round alone."""
        seed = derived_seed(federation.seed, "measure", federation.round)
        with seeded_rng(seed, federation.w.device):
            return self.measure(federation)

    def _add(self, federation: Federation, metrics: Metrics) -> None:
        measured = self.measured(federation)
        metrics.update(measured)
        if federation.round % self.every:
            federation.last_only.update(measured)


class CohortMeasure(Measure):
    """A measure with a row of numbers for each client of the cohort.

    Attributes:
        cohort: The clients of the round.
        due: Whether the round is measured.
        rows: The rows of the clients that this rank has trained, by client.
    """

    cohort: Sequence[int]
    due: bool
    rows: dict[int, list[float]]

    def on_round_start(self, federation: Federation, cohort: Sequence[int]) -> None:
        self.cohort, self.rows = cohort, {}
        self.due = self.is_due(federation, federation.round + 1)

    def on_last_round_end(self, federation: Federation, metrics: Metrics) -> None:
        """Skipped on an early stop, which is decided after training."""

    def counted(self, federation: Federation) -> list[int]:
        """The clients of the round but for those skipped."""
        return [client for client in self.cohort if client not in federation.skipped]

    def table(self, federation: Federation, width: int) -> Tensor:
        """The rows of all counted clients, (M, width) float64, from all ranks."""
        return rows_of_all(federation, self.rows, self.counted(federation), width)


def rows_of_all(
    federation: Federation, mine: Mapping[int, list[float]], clients: Sequence[int], width: int
) -> Tensor:
    """A row for each of these clients, (M, width) float64, from the rank that has it."""
    rows = [mine.get(client, [0.0] * width) for client in clients]
    table = torch.tensor(rows, dtype=torch.float64, device=federation.w.device)
    table = table.reshape(len(rows), width)
    federation.all_reduce_sum(table)
    return table


def defined(values: Tensor) -> Tensor:
    """The values that are numbers, or all if none is."""
    numbers = values[~values.isnan()]
    return numbers if len(numbers) else values


def over_clients(
    name: str, values: Tensor, weights: Tensor | None = None, larger: bool | None = None
) -> Metrics:
    """Mean, standard deviation and mean of the worst tenth of one number for each client.

    Args:
        name: The name of the mean; the others are `<name>_std` and `<name>_worst10`.
        values: (clients,).
        weights: Weights in the mean alone, (clients,); equal by default.
        larger: Whether larger values are better; by the name if None.
    """
    larger = higher_is_better(name) if larger is None else larger
    weights = torch.ones_like(values) if weights is None else weights.to(values)
    worst_first = values.sort(descending=not larger).values
    return {
        name: ((values @ weights) / weights.sum()).item(),
        f"{name}_std": values.std(correction=0).item(),
        f"{name}_worst10": worst_first[: ceil(len(values) / 10)].mean().item(),
    }


@dataclass(eq=False)
class Stopping:
    """Ends the run after `patience` rounds in a row without progress.

    The first rank decides. A resumed run that had ended ends again, unless its patience is raised.
    """

    waited: int = field(default=0, init=False)
    patience: PositiveInt = 10
    saved: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        check(self, f" of {type(self).__name__}")

    def on_fit_start(self, federation: Federation) -> None:
        """Begin anew with a run, since it may have ended another; end a resumed one that had."""
        if federation.round == 0:
            self._begin_anew()
        federation.should_stop |= self._ends(federation)

    def _begin_anew(self) -> None:
        state = [f for f in fields(self) if not f.init and f.default is not MISSING]
        vars(self).update({f.name: f.default for f in state})

    def _count(self, federation: Federation, progress: bool) -> None:
        self.waited = 0 if progress else self.waited + 1
        federation.should_stop |= federation.fabric.broadcast(self._ends(federation))

    def _ends(self, federation: Federation) -> bool:
        return self.waited >= self.patience

    def state_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("waited", *self.saved)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
