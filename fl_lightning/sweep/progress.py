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


class ProgressLine:
    """Shows rounds of the runs at work, and the time until all are done.

    Args:
        jobs: The jobs of the table.
        pool: The workers.
        workers: How many there are.
    """

    def __init__(self, jobs: Sequence[Job], pool: Pool, workers: int):
        self.jobs, self.pool, self.workers = jobs, pool, workers
        self.clock = Clock(jobs)
        self._printed = time.monotonic()
        self._ended = 0
        console = Console(file=sys.stdout)
        columns = BarColumn(bar_width=24), TextColumn("{task.description}")
        self._live = Progress(*columns, console=console) if console.is_terminal else None
        if self._live:
            self._task = self._live.add_task("", total=sum(job.rounds for job in jobs))
            self._live.start()

    def update(self) -> None:
        """Show how far the runs are."""
        running = list(self.pool.running)
        self.clock.update(running)
        ended = sum(job.state == "finished" for job in self.jobs)
        if self._live:
            done = sum(map(self.clock.rounds, self.jobs))
            self._live.update(self._task, completed=done, description=self._text(running, ended))
        elif ended > self._ended or time.monotonic() > self._printed + EVERY:
            print(self._text(running, ended), flush=True)
            self._ended, self._printed = ended, time.monotonic()

    def stop(self) -> None:
        """Restore the terminal."""
        if self._live:
            self._live.stop()

    def _text(self, running: Sequence[Job], ended: int) -> str:
        left = duration(self.clock.total(self.workers))
        names = [f"{job.folder.name} {self.clock.rounds(job)}/{job.rounds}" for job in running]
        failed = f", {len(self.pool.failures)} failed" if self.pool.failures else ""
        return f"{ended}/{len(self.jobs)} runs{failed}  {left} left  {', '.join(names)}"


def duration(seconds: float | None) -> str:
    """A duration in hours or minutes."""
    if seconds is None:
        return "unknown time"
    return f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{seconds / 60:.1f} min"
