"""The runs of a table: their command lines, folders, and how far each is."""

import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from inspect import signature
from itertools import chain, count
from pathlib import Path
from typing import Literal

from fl_lightning.algorithms.registry import ALGORITHMS
from fl_lightning.cli.argv import flag_of, last_value
from fl_lightning.cli.config_files import included
from fl_lightning.cli.recipes import experiment_of
from fl_lightning.lab.report.comparison import format_value
from fl_lightning.lab.sweep.table_file import Options, TableFile, combinations
from fl_lightning.runs.config import Config, component_defaults
from fl_lightning.runs.config_yaml import flat
from fl_lightning.runs.effect import Effect
from fl_lightning.runs.run import Run

RESULTS = Effect.NUMBERS, Effect.EXTENT
"""Effects of the options that a run must share with a cell to be the cell's."""

Cell = tuple[str, str, str]
"""The labels of row, column and tuned values."""


@dataclass(eq=False)
class Job:
    """One run of a table.

    Attributes:
        argv: The options of the recipe, without the run's folder.
        config: The options of the run.
        defaults: Options that a run of an older version may lack.
        cells: The cells that show it; equal options of several cells are one run.
        folder: Where it lies or will lie.
    """

    argv: list[str]
    config: Config
    defaults: Options
    cells: list[Cell]
    folder: Path

    @property
    def state(self) -> Literal["missing", "begun", "finished"]:
        """Whether it has begun, and ended."""
        found = _config(self.folder)
        if found is None or not self.has(found):
            return "missing"
        return "finished" if Run(self.folder, found).ended else "begun"

    def has(self, found: Config) -> bool:
        """Whether a run with these options is this one."""
        if any(found[option] != self.config[option] for option in ("algorithm", "seed")):
            return False  # comparing all would take long
        return not self.config.differences(Config({**self.defaults, **found}), *RESULTS)

    def command(self, further: Sequence[str] = ()) -> list[str]:
        """The recipe's options that begin the run, or resume it with `further` ones."""
        folder = ["--run-dir", str(self.folder)]
        if self.state == "missing":
            return [*self.argv, *folder]
        return [*folder, "--resume", *further, "--devices", "1"]


def plan(table: TableFile, recipe: Path, runs: Path, further: Sequence[str] = ()) -> list[Job]:
    """The runs of a table, each once, in the order of columns, rows and seeds.

    Args:
        table: The table.
        recipe: The recipe's file.
        runs: The folder of the runs; those in it with the options of a job are the job's.
        further: Options for every run.
    """
    jobs = list[Job]()
    existing = {file.parent: _config(file.parent) for file in sorted(runs.rglob("config.yaml"))}
    kinds = {kind: choice.name for kind, choice in experiment_of(str(recipe), []).chosen.items()}
    for cell, argv in command_lines(table):
        for seed in table.seeds:
            line = [*argv, *further, "--seed", str(seed), "--devices", "1"]
            experiment = experiment_of(str(recipe), line)
            config = experiment.config
            same = next((job for job in jobs if not config.differences(job.config, *RESULTS)), None)
            if same:
                same.cells.append(cell)
                continue
            labels = "-".join(_slug(part) for part in (cell[1], cell[0], cell[2]) if part)
            # a file's name has at most 255 bytes
            name = f"{labels.encode()[:200].decode(errors='ignore')}-s{seed}"
            new = _new_folder(runs, name, {job.folder for job in jobs})
            job = Job(line, config, kinds | component_defaults(experiment.chosen), [cell], new)
            own = (folder for folder, found in existing.items() if found and job.has(found))
            job.folder = next(own, new)
            jobs.append(job)
    return jobs


def command_lines(table: TableFile) -> Iterator[tuple[Cell, list[str]]]:
    """The cells of a table and the options of each, without a seed."""
    for column, options, swept in table.swept_columns():
        for row, own in table.rows.items():
            for tuned, values in combinations(table.tune):
                yield (row, column, tuned), _flags(table, own, options, swept, values)


def _flags(table: TableFile, *parts: Options) -> list[str]:
    """The flags of a cell: presets to read, then the options of each part and of its method."""
    argv, configs = list[str](), [table.name]
    for part in map(dict, parts):
        configs += included(table.name, part)
        methods = part.pop("methods", {})
        argv += _as_flags(part)
        method = last_value(argv, "--algorithm") or table.algorithm
        own = signature(ALGORITHMS[method]).parameters if method in ALGORITHMS else ()
        row = methods.get(method, {})
        argv += _as_flags({f"algorithm.{k}" if k in own else k: v for k, v in row.items()})
    return [word for name in configs for word in ("--config", name)] + argv


def _as_flags(options: Options) -> list[str]:
    return [
        word
        for option, value in flat(options).items()
        for each in (value if option == "callback" and isinstance(value, list) else [value])
        for word in (flag_of(option), format_value(each))
    ]


def _config(folder: Path) -> Config | None:
    """The options of the run in a folder; None if there is none that can be read."""
    with suppress(OSError, ValueError, AttributeError, TypeError):
        return Config.read(folder)
    return None


def _new_folder(runs: Path, name: str, taken: Collection[Path]) -> Path:
    folders = chain([runs / name], (runs / f"{name}-{number}" for number in count(2)))
    return next(f for f in folders if f not in taken and not (f / "config.yaml").exists())


def _slug(text: str) -> str:
    return re.sub(r"[^\w.=+-]+", "_", text).strip("_")
