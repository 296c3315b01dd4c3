"""An executor that times several others and keeps the fastest."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from lightning.fabric.utilities.rank_zero import rank_zero_only
from torch import nn

from fl_lightning.core.device import synchronized_time
from fl_lightning.core.vector import Layout
from fl_lightning.errors import ModelError, TermError, first_sentence
from fl_lightning.executors.executor import Broadcast, Executor, Outcome, Visit

TRIES = 3
"""Timed calls of each executor. The first one warms up: kernels are chosen, programs compiled."""


class AutotunedExecutor(Executor):
    """Trains with each executor for `TRIES` calls, then with the fastest one.

    The timed calls are the run's first rounds, so nothing is computed twice. An executor that
    cannot train this model, or runs out of memory, is dropped.

    Args:
        candidates: Factories of the executors. An error of the first one is raised.
        **options: Arguments of `Executor`, as are the first two.
    """

    def __init__(
        self,
        module: nn.Module,
        layout: Layout,
        *,
        candidates: Sequence[Callable[..., Executor]],
        **options: Any,
    ):
        super().__init__(module, layout, **options)
        self._device = next(module.parameters()).device
        self._seconds: dict[Executor, list[float]] = {
            make(module, layout, **options): [] for make in candidates
        }
        self._first = next(iter(self._seconds))
        self.width = max(executor.width for executor in self._seconds)

    def __call__(self, received: Broadcast, visits: Sequence[Visit]) -> Iterable[Outcome]:
        """Train up to `width` clients."""
        if len(self._seconds) > 1:
            return self._try(received, visits)
        (executor,) = self._seconds
        return executor(received, visits)

    def _try(self, received: Broadcast, visits: Sequence[Visit]) -> Iterator[Outcome]:
        """Train with the next executor and record its seconds for a local step of a client."""
        executor = next(e for e, seconds in self._seconds.items() if len(seconds) < TRIES)
        began, failed = synchronized_time(self._device), False
        try:
            outcomes = iter(executor(received, visits))
            first = next(outcomes)
        except (ModelError, TermError, RuntimeError) as error:
            if executor is self._first:
                raise
            _print(f"clients will not train {_how(executor)}: {first_sentence(error)}")
            failed = True
        if failed:  # outside of `except`, where the error still holds the executor's memory
            del self._seconds[executor]
            self._settle()
            yield from self(received, visits)
            return
        yield first
        yield from outcomes
        steps = sum(len(visit.lrs) for visit in visits)
        self._seconds[executor].append((synchronized_time(self._device) - began) / steps)
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
