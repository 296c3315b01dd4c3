"""`fl-lightning table FILE`: make the runs of a table that are missing, and print it.

Options of the recipe go to every run, such as --rounds 2.
"""

import argparse
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from signal import SIGKILL, SIGTERM
from typing import Any

from fl_lightning.cli.arguments import ArgumentParser
from fl_lightning.cli.argv import given, last_value
from fl_lightning.cli.error_messages import exit_with_error
from fl_lightning.cli.recipes import FOLDER, preset, recipes
from fl_lightning.distributed.signals import EXIT_INTERRUPTED, EXIT_PREEMPTED, stop_on_signals
from fl_lightning.report.table import FORMATS
from fl_lightning.runs.config_yaml import load
from fl_lightning.sweep.layout import layout
from fl_lightning.sweep.plan import Job, plan
from fl_lightning.sweep.pool import Pool, slots
from fl_lightning.sweep.progress import Clock, ProgressLine, duration
from fl_lightning.sweep.submit import submit
from fl_lightning.sweep.table_file import TableFile

FIXED = {
    "seed": "--seeds",
    "run_dir": "--runs",
    "resume": "nothing: begun runs are resumed",
    "devices": "--jobs: each run has one rank",
}
"""Options that a table sets for each run, and what to give instead."""


def main(argv: Sequence[str]) -> None:
    """Run the table that `argv` names."""
    options, further = parse(argv)
    try:
        table = table_of(options)
        recipe = recipes().get(options.recipe, Path(options.recipe)).resolve()
        if not recipe.is_file():
            raise ValueError(f"there is no recipe {options.recipe!r}: fl-lightning run lists them")
        runs = options.runs or _runs(options.table)
        jobs = plan(table, recipe, runs, further)
        part = jobs[options.shard[0] - 1 :: options.shard[1]]
        if options.dry_run:
            print(_commands(part, options, further))
            return
        if options.submit:
            print(submit(options.submit, argv, runs, dict(options.submit_option)))
            return
        code = 0 if options.no_runs else _run(part, recipe, runs, further, options)
        tables = layout(table, jobs)
    except (ValueError, OSError) as error:
        exit_with_error(str(error))
    except KeyboardInterrupt:
        raise SystemExit(EXIT_INTERRUPTED) from None
    for shown in tables:
        print(FORMATS[options.format](shown)) if options.format else shown.show()
    raise SystemExit(code)


def _run(
    jobs: Sequence[Job],
    recipe: Path,
    runs: Path,
    further: Sequence[str],
    options: argparse.Namespace,
) -> int:
    """Make the runs that are not finished; gives the exit code."""
    todo = [job for job in jobs if job.state != "finished"]
    if not todo:
        return 0
    workers = _slots(options, further, len(todo))
    pool = Pool(todo, recipe, runs / "logs", further, workers)
    line, interrupts = ProgressLine(jobs, pool, len(workers)), 0
    with stop_on_signals(lambda: None) as signals:
        while True:
            try:
                if signals and not interrupts:
                    raise KeyboardInterrupt
                line.update()
                if pool.wait(0.5):
                    break
            except KeyboardInterrupt:
                interrupts += 1
                pool.stop(SIGTERM if interrupts == 1 else SIGKILL)
                if interrupts == 1:
                    print("stopping: each run saves its round; Ctrl-C again to end immediately")
    line.update()
    line.stop()
    for folder, reason in pool.failures.items():
        print(f"failed: {folder}: {reason} ({runs / 'logs' / folder.name}.log)", file=sys.stderr)
    if interrupts:
        print("stopped: the same command continues", file=sys.stderr)
        return EXIT_PREEMPTED if signals else EXIT_INTERRUPTED
    return int(bool(pool.failures))


def _commands(jobs: Sequence[Job], options: argparse.Namespace, further: Sequence[str]) -> str:
    """The commands of the runs that are not finished, and the time that they take."""
    clock, todo = Clock(jobs), [job for job in jobs if job.state != "finished"]
    workers = len(_slots(options, further, max(1, len(todo))))
    start = "fl-lightning", "run", options.recipe
    lines = [
        f"{shlex.join([*start, *job.command(further)])}  # {job.state}, {duration(clock.left(job))}"
        for job in todo
    ]
    total = duration(clock.total(workers))
    lines.append(f"{len(jobs)} runs, {len(todo)} to make: {total} on {workers} worker(s)")
    return "\n".join(lines)


def _slots(options: argparse.Namespace, further: Sequence[str], runs: int) -> list[dict[str, str]]:
    return slots(options.jobs, options.per_gpu, last_value(further, "--accelerator") == "cpu", runs)


def _runs(table: str) -> Path:
    """The folder of the runs: one for all presets of a paper, so that its tables share runs."""
    file = preset(table).resolve()
    presets = FOLDER.resolve() / "presets"
    return Path("runs", file.parent.name if file.is_relative_to(presets) else file.stem)


def table_of(options: argparse.Namespace) -> TableFile:
    """The table of a file, as the command line changes it."""
    table = TableFile.read(options.table).select(options.methods, options.columns)
    values = {
        "seeds": options.seeds,
        "scores": options.score,
        "over": options.over,
        "sweep": dict(options.sweep),
        "tune": dict(options.tune),
    }
    return replace(table, **{key: value for key, value in values.items() if value})


def parse(argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """The options of the command, and those of the runs."""
    parser = ArgumentParser("fl-lightning table FILE", description=__doc__)
    add = parser.add_argument
    add("--seeds", type=_integers, metavar="N,...", help="seeds of each cell")
    add("--methods", metavar="NAME,...", help="rows by label or pattern, or further algorithms")
    add("--columns", metavar="NAME,...", help="columns by label or pattern, such as 'CIFAR-10*'")
    repeated: dict[str, Any] = {"action": "append", "default": []}
    values = {**repeated, "type": _values, "metavar": "OPTION=VALUE,..."}
    add("--sweep", **values, help="a column for each value; can be repeated for combinations")
    add("--tune", **values, help="the best of these values in each cell; can be repeated")
    add("--score", **repeated, help="last, last:50, best, rounds_to:80, ...; can be repeated")
    add(
        "--runs",
        type=Path,
        metavar="FOLDER",
        help="where runs lie or are made (default: runs/ and the name of the table)",
    )
    add("--over", metavar="ROW", help="show gains, or speed-ups to a target, over this row")
    add("--recipe", default="papers", help="a recipe by name or file (default: papers)")
    add(
        "--jobs",
        type=_count,
        metavar="N",
        help="runs at a time, each with one thread (default: one a core, or a GPU)",
    )
    add("--per-gpu", type=_count, default=1, metavar="N", help="runs at a time on each GPU")
    add("--format", choices=FORMATS, help="print in this format instead of a terminal's table")
    add("--no-runs", action="store_true", help="print the table of what there is, make no run")
    add("--dry-run", action="store_true", help="print the commands and the hours that they take")
    add(
        "--shard",
        type=_shard,
        default=(1, 1),
        metavar="I/N",
        help="make the I-th of N parts of the runs, as in a job array",
    )
    add("--submit", type=_count, metavar="N", help="submit N shards to SLURM with submitit")
    add(
        "--submit-option",
        **repeated,
        type=_pair,
        metavar="NAME=VALUE",
        help="an option of submitit, such as timeout_min=600; can be repeated",
    )
    if not argv or argv[0].startswith("-"):
        parser.parse_args(argv or ["--help"])  # --help
        parser.error("the table comes first: fl-lightning table fedssg/table4 --seeds 0,1,2")
    options, further = parser.parse_known_args(argv[1:])
    for name in FIXED.keys() & given(further):
        parser.error(f"--{name.replace('_', '-')} differs from run to run: give {FIXED[name]}")
    options.table = argv[0]
    return options, further


def _integers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(",")))


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is below 1")
    return number


def _shard(text: str) -> tuple[int, int]:
    part, _, parts = text.partition("/")
    if not 1 <= int(part) <= int(parts):
        raise argparse.ArgumentTypeError(f"{text} is not I/N with I from 1 to N")
    return int(part), int(parts)


def _pair(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text} is not NAME=VALUE")
    return name, load(value)


def _values(text: str) -> tuple[str, list[Any]]:
    name, _ = _pair(text)
    values = text.partition("=")[2].split(",")
    return name.removeprefix("--").replace("-", "_"), [*map(load, values)]
