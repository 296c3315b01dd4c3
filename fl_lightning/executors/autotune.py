"""An executor that times several others and keeps the fastest."""

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
"""Timed calls of each executor. The first one warms up: it chooses kernels and compiles programs."""


class AutotunedExecutor(Executor):
    """Trains with each executor for `TRIES` calls, then with the fastest one.

    The timed calls are the run's first rounds, so nothing is computed twice. An executor that
    cannot train this model, or runs out of memory, is dropped.

    Args:
        module: The model.
        layout: Its flat vector.
        candidates: Factories of the executors. An error of the first one is raised.
        clock: Seconds, after the device has finished its work.
        **options: Further arguments of `Executor`.
    """

    def __init__(
        self,
        module: nn.Module,
        layout: Layout,
        *,
        candidates: Sequence[Callable[..., Executor]],
        clock: Callable[[torch.device], float] = synchronized_time,
        **options: Any,
    ):
        super().__init__(module, layout, **options)
        self._clock, self._device = clock, next(module.parameters()).device
        self._seconds: dict[Executor, list[float]] = {
            make(module, layout, **options): [] for make in candidates
        }
        self._first = next(iter(self._seconds))
        self.width = max(executor.width for executor in self._seconds)

    def __call__(
        self,
        algorithm: Algorithm,
        round_facts: Facts,
        visits: Sequence[Visit],
        server_states: Sequence[States],
        buffers: Buffers,
    ) -> Iterable[Outcome]:
        """Train up to `width` clients."""
        given = algorithm, round_facts, visits, server_states, buffers
        if len(self._seconds) > 1:
            return self._try(given, sum(len(visit.lrs) for visit in visits))
        (executor,) = self._seconds
        return executor(*given)

    def _try(self, given: tuple[Any, ...], steps: int) -> Iterator[Outcome]:
        """Train with the next executor and record its seconds for a local step of a client."""
        executor = next(e for e, seconds in self._seconds.items() if len(seconds) < TRIES)
        began, failed = self._clock(self._device), False
        try:
            outcomes = iter(executor(*given))
            first = next(outcomes)
        except (ModelError, TermError, torch.OutOfMemoryError) as error:
            if executor is self._first:
                raise
            _print(f"clients will not train {_how(executor)}: {first_sentence(error)}")
            failed = True
        if failed:  # outside of `except`, where the error still holds the executor's memory
            del self._seconds[executor]
            self._settle()
            yield from self(*given)
            return
        yield first
        yield from outcomes
        self._seconds[executor].append((self._clock(self._device) - began) / steps)
        self._settle()

    def _settle(self) -> None:
        """Keep only the fastest executor once all have been timed."""
        best = {e: min(seconds) for e, seconds in self._seconds.items() if len(seconds) == TRIES}
        if 1 < len(best) == len(self._seconds):
            fastest = min(best, key=lambda executor: best[executor])
            each = ", ".join(f"{1e3 * s:.3g} ms {_how(executor)}" for executor, s in best.items())
            _print(f"a client's local step took {each}: continuing {_how(fastest)}")
            self._seconds = {fastest: []}
        self.width = max(executor.width for executor in self._seconds)


def _how(executor: Executor) -> str:
    return "one after another" if executor.width == 1 else f"{executor.width} in parallel"


@rank_zero_only
def _print(line: str) -> None:
    """Print on the first rank only; every rank has its own timings."""
    print(line)
