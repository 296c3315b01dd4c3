"""`fl-lightning table FILE`: make the runs of a table that are missing, and print it.

Options of the recipe go to every run, such as --rounds 2.
"""

import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from pandas import concat

from fl_lightning.cli.arguments import (
    ArgumentParser,
    add_parameters,
    flag_of,
    given,
    last_value,
    options_of,
)
from fl_lightning.cli.error_messages import exit_with_message
from fl_lightning.cli.recipes import PRESETS, preset, recipes
from fl_lightning.core.constraints import PositiveInt, check
from fl_lightning.distributed.signals import EXIT_INTERRUPTED, EXIT_PREEMPTED
from fl_lightning.errors import UserError
from fl_lightning.lab.report.table import Format, Table
from fl_lightning.lab.sweep.axes import FIXED, combinations
from fl_lightning.lab.sweep.layout import choose, layout
from fl_lightning.lab.sweep.plan import Job, plan
from fl_lightning.lab.sweep.pool import Environment, run_all, slots, start_server
from fl_lightning.lab.sweep.stacks import Stack, sentence, stacked
from fl_lightning.lab.sweep.table_file import TableFile
from fl_lightning.runs.config import load

STOPPED = EXIT_INTERRUPTED, EXIT_PREEMPTED
"""Exit codes after a signal."""


@dataclass
class TableOptions:
    """Options of the command.

    Args:
        table: A preset, or a YAML file.
        seeds: Seeds of each cell; none for the table's.
        methods: Rows by label or pattern, or further algorithms.
        columns: Columns by label or pattern, such as 'CIFAR-10*'.
        sweep: A column for each value, as OPTION=VALUE,...; several give all combinations.
        tune: Show the best of these values in each cell, as OPTION=VALUE,...
        score: Scores to show: last, last:50, best, rounds_to:80, ...
        runs: The folder of the runs, old and new; none for one in runs/.
        over: Compare with this row: gains in accuracy, speed-ups to targets.
        recipe: The recipe that makes the runs, by name or file; none for the table's.
        jobs: Runs at a time, each with one thread; none for one a core, or a GPU.
        per_gpu: Runs at a time on each GPU.
        stack: Runs that train as one program, where they differ in numbers alone, such as the seed;
            a stack is one of the runs at a time.
        format: Print the table in this format.
        no_runs: Make no run; print the table of those that are finished.
        dry_run: Make no run; print the commands of missing runs and the folders of finished ones.
        shard: Make only the I-th of N parts of the runs, as I/N; for job arrays.
    """

    table: str
    seeds: tuple[int, ...] = ()
    methods: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    sweep: Sequence[str] = ()
    tune: Sequence[str] = ()
    score: tuple[str, ...] = ()
    runs: Path | None = None
    over: str | None = None
    recipe: str | None = None
    jobs: PositiveInt | None = None
    per_gpu: PositiveInt = 1
    stack: PositiveInt = 1
    format: Format | None = None
    no_runs: bool = False
    dry_run: bool = False
    shard: str = "1/1"

    def __post_init__(self) -> None:
        check(self)
        part, _, parts = self.shard.partition("/")
        if not (part.isdecimal() and parts.isdecimal() and 1 <= int(part) <= int(parts)):
            raise UserError(f"shard is I/N with I from 1 to N, such as 3/16, not {self.shard}")

    def read(self) -> TableFile:
        """The table of the file, as the command line changes it."""
        changes: Mapping[str, Any] = {
            "recipe": self.recipe,
            "seeds": tuple(dict.fromkeys(self.seeds)),
            "scores": tuple(self.score),
            "over": self.over,
            "sweep": self.sweep and combinations(_values(self.sweep)),
            "tune": self.tune and {"": combinations(_values(self.tune))},
        }
        given = {name: value for name, value in changes.items() if value}
        table = TableFile.read(self.table).changed(self.methods, self.columns, **given)
        if table.tune_seeds and self.shard != "1/1":
            raise UserError("tune_seeds chooses when all trials have ended: omit --shard")
        return table

    def part(self, jobs: Sequence[Job]) -> list[Stack]:
        """The jobs of the shard, in stacks."""
        part, parts = map(int, self.shard.split("/"))
        return stacked(jobs, self.stack)[part - 1 :: parts]

    @property
    def folder(self) -> Path:
        """The folder of the runs: one for all presets of a paper, so that its tables share runs."""
        if self.runs:
            return self.runs
        file = preset(self.table).resolve()
        installed = file.is_relative_to(PRESETS.resolve())
        return Path("runs", file.parent.name if installed else file.stem)


def main(argv: Sequence[str]) -> None:
    """Run the table that `argv` names."""
    with exit_with_message():
        _run(*parse(argv))


def _run(options: TableOptions, further: Sequence[str]) -> None:
    table = options.read()
    table.refuse_labeled(given(further))
    recipe = recipes().get(table.recipe, Path(table.recipe)).resolve()
    if not recipe.is_file():
        raise UserError(f"there is no recipe {table.recipe!r}: fl-lightning run lists them")
    makes = not (options.dry_run or options.no_runs)
    on_cpu = last_value(further, "--accelerator") == "cpu"
    at_a_time, says = slots(options.jobs, options.per_gpu, on_cpu), options.stack > 1
    if makes:
        start_server(at_a_time[0])  # which imports the package while the runs are planned
    code, notes, trials = 0, list[str](), list[Job]()
    if table.tune_seeds:
        trials = plan(replace(table, seeds=table.tune_seeds), recipe, options.folder, further)
        code = _make(stacked(trials, options.stack), at_a_time, says) if makes else 0
        table, notes = choose(table, trials)
    jobs = plan(table, recipe, options.folder, further)
    part = options.part(jobs)
    if options.dry_run:
        print(_commands([*trials, *chain.from_iterable(part)], table.recipe))
        return
    if makes and code not in STOPPED:
        code = _make(part, at_a_time, says) or code
    tables = layout(table, jobs)
    for shown in [_merged(tables)] if options.format == "csv" else tables:
        shown.show(options.format)
        for note in (*notes, *shown.notes):
            print(f"note: {note}", file=sys.stderr)
        notes = []
    raise SystemExit(code)


def _merged(tables: Sequence[Table]) -> Table:
    """The numbers of all as one table: a CSV file has one line of headings."""
    numbers = concat([table.numbers for table in tables], ignore_index=True)
    notes = [*chain.from_iterable(table.notes for table in tables)]
    return replace(tables[0], numbers=numbers, notes=notes)


def _make(stacks: Sequence[Stack], at_a_time: Sequence[Environment], says: bool) -> int:
    """Make the missing runs; say which train together, and which failed; gives the exit code."""
    if says:
        print(sentence(stacks), file=sys.stderr)
    failures, signals = run_all(stacks, at_a_time)
    for job in (job for job in chain.from_iterable(stacks) if job.folder in failures):
        print(f"failed: {job.folder}: {failures[job.folder]} ({job.log})", file=sys.stderr)
    if signals:
        print("stopped: the same command continues", file=sys.stderr)
        return EXIT_INTERRUPTED if "SIGINT" in signals else EXIT_PREEMPTED
    return int(bool(failures))


def _commands(jobs: Sequence[Job], recipe: str) -> str:
    """The folders of the finished runs, and the commands of the others."""
    lines, todo = list[str](), list[str]()
    for job in {job.folder: job for job in jobs}.values():
        if (state := job.state) == "finished":
            lines.append(f"# {job.folder} is finished")
            continue
        command = shlex.join(["fl-lightning", "run", recipe, *job.command()])
        todo.append(f"{command}  # {state}")
    return "\n".join([*lines, *todo, f"{len(lines) + len(todo)} runs, {len(todo)} to make"])


def parse(argv: Sequence[str]) -> tuple[TableOptions, list[str]]:
    """The options of the command, and the options of the runs.

    Raises:
        UserError: If an option of the command is wrong, or one of the runs is set by the table.
    """
    parser = ArgumentParser("fl-lightning table FILE", description=__doc__)
    add_parameters(parser, options_of(TableOptions)[1:])
    if not argv or argv[0].startswith("-"):
        parser.parse_known_args(argv or ["--help"])  # --help
        parser.error("the table comes first: fl-lightning table fedssg/table4 --seeds 0,1,2")
    options, further = parser.parse_known_args(argv[1:])
    fixed = {**FIXED, "seed": "--seeds", "algorithm": "--methods"}
    for name in fixed.keys() & given(further):
        raise UserError(f"{flag_of(name)} differs from run to run: give {fixed[name]}")
    return TableOptions(argv[0], **vars(options)), further


def _values(texts: Sequence[str]) -> dict[str, list[Any]]:
    """The values of options, from texts such as `algorithm.rho=0.1,0.2`."""
    found = dict[str, list[Any]]()
    for text in texts:
        name, equals, values = text.partition("=")
        if not equals:
            raise UserError(f"{text} is not OPTION=VALUE,...")
        each = re.split(r",(?![^()]*\))", values)  # cosine(0.8, 0.1) has a comma of its own
        option = name.removeprefix("--").replace("-", "_")
        found.setdefault(option, []).extend(map(load, each))
    return found
