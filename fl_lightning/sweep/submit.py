"""The shards of a table as a job array of SLURM, by submitit."""

import subprocess
import sys
from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass
class Shard:
    """One part of a table, as a job: the table's command line, and the part, such as `3/16`."""

    argv: Sequence[str]
    part: str

    def __call__(self) -> int:
        """Run it; gives the exit code."""
        command = [sys.executable, "-m", "fl_lightning", "table", *self.argv]
        return subprocess.run([*command, "--shard", self.part], check=False).returncode

    def checkpoint(self) -> Any:
        """The job that submitit queues again after a timeout or a preemption."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


def submit(shards: int, argv: Sequence[str], runs: Path, options: Mapping[str, Any]) -> str:
    """Submit a table; gives the message that names the jobs.

    Args:
        shards: The number of jobs.
        argv: The table's command line.
        runs: The folder of the runs, below which submitit keeps its files.
        options: Options of submitit, such as `timeout_min`, `slurm_partition`, or `cluster`.

    Raises:
        ValueError: If submitit is not installed, or refuses an option.
    """
    try:
        import submitit
    except ImportError:
        raise ValueError("--submit needs submitit: pip install 'submitit>=1.5'") from None
    options = {"name": "fl-lightning", **options}
    executor = submitit.AutoExecutor(runs / "jobs", cluster=options.pop("cluster", None))
    try:
        executor.update_parameters(**options)
    except (NameError, TypeError) as error:
        raise ValueError(f"submitit refuses an option: {error}") from None
    submission = ArgumentParser(add_help=False, allow_abbrev=False)
    submission.add_argument("--submit")
    submission.add_argument("--submit-option")
    _, rest = submission.parse_known_args(argv)
    with executor.batch():
        jobs = [executor.submit(Shard(rest, f"{k + 1}/{shards}")) for k in range(shards)]
    return f"submitted {shards} job(s) from {jobs[0].job_id}: {runs / 'jobs'} has their output"
