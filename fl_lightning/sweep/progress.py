"""The progress of all runs of a table, and the time that they still take."""

import sys
import time
from collections import defaultdict
from collections.abc import Collection, Sequence
from pathlib import Path
from statistics import fmean, median

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from fl_lightning.sweep.plan import Job
from fl_lightning.sweep.pool import Pool

EVERY = 60
"""Seconds between lines where there is no terminal."""

SHOWN = 4
"""Runs at work that are named."""


class Clock:
    """Seconds that the jobs of a table still take.

    The seconds of a round are those of the job itself, else the mean of jobs in the same row and
    column, else in the same row, the same column, or all.

    Attributes:
        rounds: The rounds that each job has had, by its folder.
        finished: The folders of the jobs that have ended.
    """

    def __init__(self, jobs: Sequence[Job]):
        self._jobs = jobs
        self._seconds = dict[Path, float]()
        self.rounds = dict[Path, int]()
        self.finished = set[Path]()
        self.update(jobs)

    def update(self, jobs: Collection[Job]) -> None:
        """Read what these jobs have recorded since."""
        for job in jobs:
            scalars = job.scalars
            self.rounds[job.folder] = max((k for tag in scalars.values() for k in tag), default=0)
            if times := scalars.get("time/round_s"):
                self._seconds[job.folder] = median(times.values())
            if job.state == "finished":
                self.finished.add(job.folder)

    def left(self, job: Job) -> float | None:
        """The seconds that a job still takes; None if nothing is known."""
        if job.folder in self.finished:
            return 0.0
        per_round = self._per_round(job)
        return None if per_round is None else per_round * (job.rounds - self.rounds[job.folder])

    def total(self, workers: int, failed: Collection[Path] = ()) -> float | None:
        """The seconds until the last job ends on these workers; None if nothing is known."""
        left = [self.left(job) for job in self._jobs if job.folder not in failed]
        known = [seconds for seconds in left if seconds is not None]
        if len(known) < len(left):
            return None
        return max([sum(known) / workers, *known])

    def _per_round(self, job: Job) -> float | None:
        if job.folder in self._seconds:
            return self._seconds[job.folder]
        row, column, _ = job.cells[0]
        alike = defaultdict[tuple[bool, bool], list[float]](list)
        for other in self._jobs:
            if other.folder in self._seconds:
                likeness = max((r == row, c == column) for r, c, _ in other.cells)
                alike[likeness].append(self._seconds[other.folder])
        return fmean(alike[max(alike)]) if alike else None


class ProgressLine:
    """Shows rounds of the runs at work, and the time until all are done."""

    def __init__(self, jobs: Sequence[Job], pool: Pool, workers: int):
        self.jobs, self.pool, self.workers = jobs, pool, workers
        self.clock = Clock(jobs)
        self._printed, self._ended = time.monotonic(), 0
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
            done = sum(self.clock.rounds.values())
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
        at_work = [
            f"{j.folder.name} {self.clock.rounds[j.folder]}/{j.rounds}" for j in self._running
        ]
        shown = ", ".join([*at_work[:SHOWN], *["..."] * (len(at_work) > SHOWN)])
        failures = f", {len(failed)} failed" if failed else ""
        return f"{len(self.clock.finished)}/{len(self.jobs)} runs{failures}  {left} left  {shown}"


def duration(seconds: float | None) -> str:
    """A duration in hours or minutes."""
    if seconds is None:
        return "unknown time"
    return f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{seconds / 60:.1f} min"
