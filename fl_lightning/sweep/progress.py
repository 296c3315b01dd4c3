"""One line for all runs of a table."""

import sys
import time
from collections.abc import Sequence

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from fl_lightning.sweep.estimate import Clock
from fl_lightning.sweep.plan import Job
from fl_lightning.sweep.pool import Pool

EVERY = 60
"""Seconds between lines where there is no terminal."""

SHOWN = 4
"""Runs at work that are named."""


class ProgressLine:
    """Shows rounds of the runs at work, and the time until all are done.

    Args:
        jobs: The jobs of the table.
        pool: The workers.
        clock: The time that the jobs take.
        workers: How many workers there are.
    """

    def __init__(self, jobs: Sequence[Job], pool: Pool, clock: Clock, workers: int):
        self.jobs, self.pool, self.clock, self.workers = jobs, pool, clock, workers
        self._printed = time.monotonic()
        self._ended = 0
        self._running = list[Job]()
        console = Console(file=sys.stdout)
        columns = BarColumn(bar_width=24), TextColumn("{task.description}")
        self._live = Progress(*columns, console=console) if console.is_terminal else None
        if self._live:
            self._task = self._live.add_task("", total=sum(job.rounds for job in jobs))
            self._live.start()

    def update(self) -> None:
        """Show how far the runs are."""
        before, self._running = self._running, list(self.pool.running)
        self.clock.update([*before, *self._running])
        ended = len(self.clock.finished)
        if self._live:
            done = sum(map(self.clock.rounds, self.jobs))
            self._live.update(self._task, completed=done, description=self._text())
        elif ended > self._ended or time.monotonic() > self._printed + EVERY:
            print(self._text(), flush=True)
            self._ended, self._printed = ended, time.monotonic()

    def stop(self) -> None:
        """Restore the terminal."""
        if self._live:
            self._live.stop()

    def _text(self) -> str:
        failed = dict(self.pool.failures)
        left = duration(self.clock.total(self.workers, failed))
        at_work = [f"{j.folder.name} {self.clock.rounds(j)}/{j.rounds}" for j in self._running]
        shown = ", ".join([*at_work[:SHOWN], *["..."] * (len(at_work) > SHOWN)])
        failures = f", {len(failed)} failed" if failed else ""
        return f"{len(self.clock.finished)}/{len(self.jobs)} runs{failures}  {left} left  {shown}"


def duration(seconds: float | None) -> str:
    """A duration in hours or minutes."""
    if seconds is None:
        return "unknown time"
    return f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{seconds / 60:.1f} min"
