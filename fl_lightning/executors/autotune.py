"""Whichever of several executors proves fastest."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from lightning.fabric.utilities.rank_zero import rank_zero_only
from torch import nn

from fl_lightning.core.algorithm import Algorithm, Facts
from fl_lightning.core.device import synchronized_time
from fl_lightning.core.term import States
from fl_lightning.core.vector import Layout
from fl_lightning.errors import ModelError, TermError, first_sentence
from fl_lightning.executors.executor import Buffers, Executor, Outcome, Visit

TRIES = 3
"""Calls in which an executor shows how fast it is; the first warms up: kernels are chosen, programs compiled."""


class AutotunedExecutor(Executor):
    """Trains with one executor after the other for a few calls each, and from then on with the fastest.

    All have one result, to rounding, so these calls are the run's first rounds and nothing is
    computed twice. An executor that cannot train this model, or not within the device's memory, is
    left out.

    Args:
        module, layout: As for `Executor`, like those not named here.
        candidates: Makers of the executors. What the first one cannot train is an error.
        clock: Seconds, once a device has done what it was given.
    """

    def __init__(
        self,
        module: nn.Module,
        layout: Layout,
        *,
        candidates: Sequence[Callable[..., Executor]],
        clock: Callable[[torch.device], float] = synchronized_time,
        **common: Any,
    ):
        super().__init__(module, layout, **common)
        self._clock, self._device = clock, next(module.parameters()).device
        self._seconds: dict[Executor, list[float]] = {
            make(module, layout, **common): [] for make in candidates
        }
        self._first = next(iter(self._seconds))
        self.width = max(executor.width for executor in self._seconds)

    def __call__(
        self,
        algorithm: Algorithm,
        common: Facts,
        visits: Sequence[Visit],
        shared: Sequence[States],
        buffers: Buffers,
    ) -> Iterable[Outcome]:
        """Train up to `width` clients."""
        given = algorithm, common, visits, shared, buffers
        if len(self._seconds) > 1:
            return self._try(given, sum(len(visit.lrs) for visit in visits))
        (executor,) = self._seconds
        return executor(*given)

    def _try(self, given: tuple[Any, ...], steps: int) -> Iterator[Outcome]:
        """Train with the next one and note how long a local step of a client took."""
        executor = next(e for e, seconds in self._seconds.items() if len(seconds) < TRIES)
        began, failed = self._clock(self._device), False
        try:
            outcomes = iter(executor(*given))
            first = next(outcomes)
        except (ModelError, TermError, torch.OutOfMemoryError) as error:
            if executor is self._first:
                raise
            _say(
                f"clients cannot train {_how(executor)} here, so they will not: {first_sentence(error)}"
            )
            failed = True
        if failed:  # only now, as what it held is free again
            del self._seconds[executor]
            self._settle()
            yield from self(*given)
            return
        yield first
        yield from outcomes
        self._seconds[executor].append((self._clock(self._device) - began) / steps)
        self._settle()

    def _settle(self) -> None:
        """Keep only the fastest once all have been tried."""
        took = {
            executor: min(seconds)
            for executor, seconds in self._seconds.items()
            if len(seconds) == TRIES
        }
        if 1 < len(took) == len(self._seconds):
            fastest = min(took, key=lambda executor: took[executor])
            each = ", ".join(
                f"{1e3 * seconds:.3g} ms {_how(executor)}" for executor, seconds in took.items()
            )
            _say(f"a client's local step took {each}: going on {_how(fastest)}")
            self._seconds = {fastest: []}
        self.width = max(executor.width for executor in self._seconds)


def _how(executor: Executor) -> str:
    return "one after another" if executor.width == 1 else f"{executor.width} at once"


@rank_zero_only
def _say(line: str) -> None:
    """On the first rank alone: every rank goes by its own clock."""
    print(line)
