"""The runs of a table: their command lines, folders, and how far each is."""

import re
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from inspect import signature
from itertools import chain, count, product
from pathlib import Path
from typing import Any, Literal, NamedTuple

from fl_lightning.algorithms.modifiers import JOINED
from fl_lightning.algorithms.registry import ALGORITHMS
from fl_lightning.cli.arguments import flag_of, given
from fl_lightning.cli.choices import find_function
from fl_lightning.cli.config_files import included
from fl_lightning.cli.recipes import experiment_of, run_recipe
from fl_lightning.core.programs import program_of
from fl_lightning.errors import UserError
from fl_lightning.lab.report.comparison import format_value
from fl_lightning.lab.report.score import score as make_score
from fl_lightning.lab.sweep.axes import joined
from fl_lightning.lab.sweep.table_file import TableFile
from fl_lightning.runs.config import Config, flat, folders_of_runs
from fl_lightning.runs.options import EXTENT, NONE, NUMBERS, ROUNDING
from fl_lightning.runs.run import Run
from fl_lightning.training.together import refusal

RESULTS = NUMBERS, EXTENT
"""Effects of the options that a run must share with a cell to be the cell's."""


class Cell(NamedTuple):
    """The labels of row, column and tuned values."""

    row: str
    column: str
    tuned: str


@dataclass(eq=False)
class Job:
    """One run of a table.

    Attributes:
        recipe: The recipe's file.
        argv: The options of the recipe, without the run's folder.
        further: Those of them that the user has added, which a resumed run gets too.
        config: The options of the run.
        rounds: Those of the table, which the user's options may shorten.
        cells: The cells that show it; equal options of several cells are one run.
        folder: Where it lies or will lie.
        logs: The folder of the files of what runs print.
        program: Equal for runs that differ in numbers alone, and can train as one program; empty
            if this one trains alone.
    """

    recipe: Path
    argv: list[str]
    further: Sequence[str]
    config: Config
    rounds: int
    cells: list[Cell]
    folder: Path
    logs: Path
    program: str = ""

    @property
    def log(self) -> Path:
        """The file of what it prints."""
        return self.logs / f"{self.folder.name}.log"

    @property
    def state(self) -> Literal["missing", "begun", "finished"]:
        """Whether it has begun, and ended."""
        found = _config(self.folder)
        if found is None or not self.fits(found):
            return "missing"
        return "finished" if Run(self.folder, found).ended else "begun"

    def fits(self, found: Config) -> bool:
        """Whether a run has the options of this one."""
        if any(found[option] != self.config[option] for option in ("algorithm", "seed")):
            return False  # comparing all would take long
        return not self.config.differences(found, *RESULTS)

    def command(self) -> list[str]:
        """The recipe's options that begin or resume the run."""
        folder = ["--run-dir", str(self.folder)]
        if self.state == "missing":
            return [*self.argv, *folder]
        # not what the folder says: a run that has diverged may go on as the table says now
        now = ["--on-divergence", self.config["on_divergence"], "--devices", "1"]
        if own := self.config.identity(EXTENT).get("data_dir"):
            now += ["--data-dir", own]  # of a project that has moved
        return [*folder, "--resume", *self.further, *now]

    def check(self, now: Config) -> None:
        """Raise a UserError if files that the table has read give other options by now.

        Or if another table has taken the run's folder since.
        """
        if self.state == "missing" and (self.folder / "config.yaml").exists():
            raise UserError(
                f"another table has begun a run of other options in {self.folder}: give the "
                "command again, which takes another folder"
            )
        if edited := self.config.differences(now, *RESULTS):
            which = f"{edited[0]} was {self.config.get(edited[0])} and is now {now.get(edited[0])}"
            raise UserError(
                f"{which}: a file was edited while the table ran; give the command again to read it"
            )

    def run(self) -> None:
        """Begin or resume the run in this process.

        Raises:
            UserError: See `check`.
        """
        command = self.command()
        if self.state == "missing":
            self.check(experiment_of(str(self.recipe), command).config)
        run_recipe(str(self.recipe), command)


def plan(table: TableFile, recipe: Path, runs: Path, further: Sequence[str] = ()) -> list[Job]:
    """The runs of a table, each once, in the order of columns, rows and seeds.

    Those in the folder `runs` with the options of a job are the job's.
    """
    jobs, by_results = list[Job](), dict[Hashable, Job]()
    existing = {path: _config(path) for path in folders_of_runs(runs)}
    for (cell, line), seed in product(command_lines(table, further), table.seeds):
        argv = [*line, *further, "--seed", str(seed), "--devices", "1"]
        try:
            experiment = experiment_of(str(recipe), argv)
            config = experiment.config
        except UserError as error:
            error.add_note(f"in the cell {joined(*cell)!r}")
            raise
        if same := by_results.get(results := _results(config)):
            if differ := same.config.differences(config, ROUNDING, NONE):
                both = f"{joined(*same.cells[0])!r} and {joined(*cell)!r}"
                raise UserError(
                    f"{both} differ in {differ[0]} alone, which tells no runs apart: make a table "
                    "of each value, with --runs of its own"
                )
            same.cells.append(cell)
            continue
        folder = _new_folder(runs, cell, seed, {*existing, *(job.folder for job in jobs)})
        shortens = not given(further).isdisjoint({"rounds", "config"})
        whole = experiment_of(str(recipe), line) if shortens else experiment
        rounds, logs = whole.config["rounds"], runs / "logs"
        own = config, rounds, [cell], folder, logs, _program(experiment)
        job = Job(recipe, argv, further, *own)
        fitting = (path for path, found in existing.items() if found and job.fits(found))
        job.folder = next(fitting, folder)
        jobs.append(job)
        by_results[results] = job
    for score in map(make_score, table.scores):
        option, _, value = score.needs.partition(" ")
        kept = [job.config[option] for job in jobs] if option else []
        if kept and not any(of and value in str(of) for of in kept):
            raise UserError(f"no run would record {score.name}: add {flag_of(score.needs)}")
    return jobs


def command_lines(
    table: TableFile, further: Sequence[str] = ()
) -> Iterator[tuple[Cell, list[str]]]:
    """The cells of a table and the options of each, without a seed.

    `further` are the user's options, which replace the table's.
    """
    replaced = JOINED & given(further)
    axes = table.columns, table.sweep, table.rows
    for labeled in product(*(axis.items() for axis in axes)):
        (label, swept, row), (of_column, of_sweep, of_row) = zip(*labeled, strict=True)
        column = joined(label, swept)
        for tuned, of_tune in table.tried(row, column).items():
            argv = _flags(table, replaced, of_row, of_column, of_sweep, of_tune)
            yield Cell(row, column, tuned), argv


def _flags(table: TableFile, replaced: Collection[str], *parts: Mapping[str, Any]) -> list[str]:
    """The flags of a cell: presets to read, then the options of each part and of its method."""
    options, configs = dict[str, Any](), [table.name]
    for part in map(dict, parts):
        configs += included(table.name, part)
        methods = part.pop("methods", {})
        options |= flat(part)
        method = options.get("algorithm", table.algorithm)
        row = methods.get(method, {})
        own = signature(find_function("algorithm", ALGORITHMS, method)).parameters if row else ()
        options |= flat({f"algorithm.{k}" if k in own else k: v for k, v in row.items()})
    flags = [
        (flag_of(option), format_value(each))
        for option, value in options.items()
        for each in (value if option == "callback" and isinstance(value, list) else [value])
        if option not in replaced
    ]
    return [*chain(*(("--config", name) for name in configs), *flags)]


def _config(folder: Path) -> Config | None:
    """The options of the run in a folder; None if there is none that can be read."""
    with suppress(OSError, ValueError, AttributeError, TypeError):
        return Config.read(folder)
    return None


def _program(experiment: Any) -> str:
    """See `Job.program`."""
    if refusal(experiment.config):
        return ""
    algorithm = experiment.algorithm()
    return repr((experiment.config.program(), program_of(algorithm), algorithm.trains))


def _results(config: Config) -> Hashable:
    """What decides the results of a run: equal for runs without `differences` in it."""
    options = config.identity(*RESULTS).items()
    return frozenset(
        (k, repr(v) if isinstance(v, list) else v) for k, v in options if v is not None
    )


def _new_folder(runs: Path, cell: Cell, seed: int, taken: Collection[Path]) -> Path:
    """A folder named by the cell; a file's name has at most 255 bytes.

    A Mac's disk takes names that differ by case alone for one. A folder that another command
    has begun since is none of those taken: it holds the same run.
    """
    labels = "-".join(_slug(part) for part in (cell.column, cell.row, cell.tuned) if part)
    name = f"{labels.encode()[:200].decode(errors='ignore')}-s{seed}"
    folders = chain([runs / name], (runs / f"{name}-{number}" for number in count(2)))
    names = {str(folder).lower() for folder in taken}
    return next(folder for folder in folders if str(folder).lower() not in names)


def _slug(text: str) -> str:
    return re.sub(r"[^\w.=+-]+", "_", text).strip("_")
