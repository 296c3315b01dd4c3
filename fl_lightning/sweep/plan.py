"""The runs of a table: their command lines, folders, and how far each is."""

import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import partial
from hashlib import sha256
from inspect import Parameter, signature
from itertools import chain, count
from pathlib import Path
from typing import Any, Literal

from fl_lightning.algorithms.registry import ALGORITHMS
from fl_lightning.cli.argv import flag_of, last_value
from fl_lightning.cli.config_files import included
from fl_lightning.cli.options import Options as GeneralOptions
from fl_lightning.cli.recipes import experiment_of
from fl_lightning.data.image_folder import domain_folder, image_folder
from fl_lightning.experiment import Experiment
from fl_lightning.report.comparison import format_value
from fl_lightning.runs.chosen import copy_in
from fl_lightning.runs.config_yaml import flat
from fl_lightning.runs.folder import to_yaml
from fl_lightning.runs.resume import CHANGES_ROUNDING_ONLY
from fl_lightning.runs.run import Run, Scalars, read_options, scalars
from fl_lightning.sweep.table_file import Options, TableFile, combinations

FREE = CHANGES_ROUNDING_ONLY | {
    "checkpoint_every",
    "keep_checkpoints",
    "client_state_memory",
    "deterministic",
}
"""Options in which a recognized run may differ: they change no number, or the last bits only."""

OWN_FOLDER = {source.__name__ for source in (image_folder, domain_folder)}
"""Data sources for which the folder is the data set."""

Cell = tuple[str, str, str]
"""The labels of row, column and tuned values."""


@dataclass(eq=False)
class Job:
    """One run of a table.

    Attributes:
        argv: The options of the recipe, without the run's folder.
        options: All resolved options by their flat names.
        cells: The cells that show it; equal options of several cells are one run.
        folder: Where it lies or will lie.
    """

    argv: list[str]
    options: dict[str, Any]
    cells: list[Cell]
    folder: Path

    @property
    def rounds(self) -> int:
        """The rounds that it is to have."""
        return int(self.options["rounds"])

    @property
    def run(self) -> Run:
        """The run as far as it has come."""
        recorded: Scalars = {}
        with suppress(OSError, ValueError):
            recorded = scalars(self.folder / "metrics.csv")
        return Run(self.folder, self.options, recorded)

    @property
    def state(self) -> Literal["missing", "begun", "finished"]:
        """Whether it has begun, and ended."""
        model, config = self.folder / "model.pt", self.folder / "config.yaml"
        if not config.is_file():
            return "missing"
        if not model.is_file():
            return "begun"
        run, epochs = self.run, self.options.get("finetune_epochs")
        whole = run.rounds >= self.rounds
        early = model.stat().st_mtime >= config.stat().st_mtime  # a callback ended it
        scored = not epochs or f"personal/accuracy_{max(epochs)}" in run.scalars
        return "finished" if scored and (whole or early) else "begun"

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
    jobs, existing = list[Job](), _existing(runs)
    chosen = {kind: choice.name for kind, choice in experiment_of(str(recipe), []).chosen.items()}
    for cell, argv in command_lines(table):
        for seed in table.seeds:
            line = [*argv, *further, "--seed", str(seed), "--devices", "1"]
            experiment = experiment_of(str(recipe), line)
            options = _identity(experiment)
            same = next((job for job in jobs if job.options == options), None)
            if same:
                same.cells.append(cell)
                continue
            name = "-".join(_slug(part) for part in (cell[1], cell[0], cell[2], f"s{seed}") if part)
            defaults = chosen | _defaults(experiment)
            folder = next((run for run, found in existing if _same(found, options, defaults)), None)
            folder = folder or _new_folder(runs, name, {job.folder for job in jobs})
            jobs.append(Job(line, options, [cell], folder))
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
    pairs = ((flag_of(option), format_value(value)) for option, value in flat(options).items())
    return [word for flag, value in pairs for word in (flag, value)]


def _existing(runs: Path) -> list[tuple[Path, dict[str, Any]]]:
    """The runs in a folder, with their options."""
    found = []
    for file in sorted(runs.rglob("config.yaml")):
        with suppress(OSError, ValueError, AttributeError, TypeError):
            found.append((file.parent, _of_data(read_options(file.parent))))
    return found


def _same(found: Options, options: Options, defaults: Options) -> bool:
    """Whether a run that was found has these options; what an older one lacks has its default."""
    if any(found.get(option) != options[option] for option in ("algorithm", "seed")):
        return False  # comparing all would take long
    whole = {k: found.get(k, defaults.get(k, "none")) for k in {*options, *found} - FREE}
    return whole == options


def _new_folder(runs: Path, name: str, taken: Collection[Path]) -> Path:
    folders = chain([runs / name], (runs / f"{name}-{number}" for number in count(2)))
    return next(f for f in folders if f not in taken and not (f / "config.yaml").exists())


def _identity(experiment: Experiment) -> dict[str, Any]:
    """The options that make a run what it is, as `config.yaml` and the copied files hold them."""
    options = flat(to_yaml(experiment.resolved()))
    files = {c.file for c in experiment.chosen.values() if c.file}
    if files:
        in_order = sorted(files, key=partial(copy_in, Path()))
        own = b"".join(file.read_bytes() for file in in_order)
        options["algorithm.file"] = sha256(own).hexdigest()[:8]
    return {name: value for name, value in _of_data(options).items() if name not in FREE}


def _of_data(options: Options) -> dict[str, Any]:
    """The options without the folder of downloads; the folder of user data stays."""
    name, kept = str(options["data"]), dict(options)
    folder = kept.pop("data_dir", None)
    if folder and (name in OWN_FOLDER or ":" in name):
        kept["data_dir"] = str(Path(folder).absolute())
    return kept


def _defaults(experiment: Experiment) -> dict[str, Any]:
    """Defaults of the options, which runs of older versions may lack."""
    general = {f.name: f.default for f in fields(GeneralOptions)}
    own = {
        f"{kind}.{parameter.name}": parameter.default
        for kind, chosen in experiment.chosen.items()
        for parameter in signature(chosen.function).parameters.values()
        if parameter.default is not Parameter.empty
    }
    return dict(to_yaml(general | own))


def _slug(text: str) -> str:
    return re.sub(r"[^\w.=+-]+", "_", text).strip("_")
