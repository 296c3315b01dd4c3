"""The time that runs take, from the rounds that they and others like them have had."""

from collections.abc import Collection, Sequence
from pathlib import Path
from statistics import fmean, median

from fl_lightning.sweep.plan import Job, rounds_of


class Clock:
    """Seconds that jobs still take.

    The seconds of a round are those of the job itself, else the mean of jobs in the same row and
    column, else in the same row, the same column, or all.

    Args:
        jobs: The jobs of a table.

    Attributes:
        finished: The folders of the jobs that have ended.
    """

    def __init__(self, jobs: Sequence[Job]):
        self._rounds = dict[Path, int]()
        self._seconds = dict[Path, float]()
        self.finished = set[Path]()
        self._jobs = jobs
        self.update(jobs)

    def update(self, jobs: Collection[Job]) -> None:
        """Read what these jobs have recorded since."""
        for job in jobs:
            recorded = job.scalars()
            self._rounds[job.folder] = rounds_of(recorded)
            if times := recorded.get("time/round_s"):
                self._seconds[job.folder] = median(times.values())
            if job.state == "finished":
                self.finished.add(job.folder)

    def rounds(self, job: Job) -> int:
        """The rounds that a job has had."""
        return self._rounds[job.folder]

    def left(self, job: Job) -> float | None:
        """The seconds that a job still takes; None if nothing is known."""
        if job.folder in self.finished:
            return 0.0
        per_round = self._per_round(job)
        return None if per_round is None else per_round * (job.rounds - self.rounds(job))

    def total(self, workers: int, failed: Collection[Path] = ()) -> float | None:
        """The seconds until the last job ends on so many workers; None if nothing is known."""
        left = [self.left(job) for job in self._jobs if job.folder not in failed]
        known = [seconds for seconds in left if seconds is not None]
        if len(known) < len(left):
            return None
        return max([sum(known) / workers, *known])

    def _per_round(self, job: Job) -> float | None:
        if job.folder in self._seconds:
            return self._seconds[job.folder]
        row, column, _ = job.cells[0]
        for like in ((row, column), (row, None), (None, column), (None, None)):
            found = [
                self._seconds[other.folder]
                for other in self._jobs
                if other.folder in self._seconds
                and any(like[0] in (None, r) and like[1] in (None, c) for r, c, _ in other.cells)
            ]
            if found:
                return fmean(found)
        return None
