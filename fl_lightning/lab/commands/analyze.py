"""`fl-lightning analyze`: curvature, loss surface, features and scores of trained models."""

import sys
from collections.abc import Callable, Sequence
from math import isnan
from pathlib import Path
from typing import Any, Literal

import torch
from pandas import Series

from fl_lightning.algorithms.registry import functions
from fl_lightning.cli.arguments import ArgumentParser, add_parameters, check_figures, options_of
from fl_lightning.cli.error_messages import exit_with_message
from fl_lightning.core.docstrings import summary
from fl_lightning.lab.commands import analyses
from fl_lightning.lab.commands.analyses import Result, Subject
from fl_lightning.lab.report.comparison import compare
from fl_lightning.lab.report.table import Format, Table
from fl_lightning.runs.run import Run, load_runs

ANALYSES = functions(analyses)
"""The analyses by name."""


def main(argv: Sequence[str]) -> None:
    """Print the table that `argv` asks for, and draw the figures."""
    with exit_with_message():
        analyze(**parse(argv))


def parse(argv: Sequence[str]) -> dict[str, Any]:
    """The arguments of `analyze`."""
    parser = ArgumentParser("fl-lightning analyze", description=__doc__)
    commands = parser.add_subparsers(metavar="ANALYSIS", required=True)
    _, _, *shared = options_of(analyze)
    for name, function in ANALYSES.items():
        _, *own = options_of(function)
        does = summary(function)
        command = commands.add_parser(name, help=does, description=does)
        command.set_defaults(analysis=function)
        add_parameters(command, [*shared, *own])
    values = vars(parser.parse_args(argv))
    _, *own = options_of(values["analysis"])
    return {"own": {o.name: values.pop(o.name) for o in own}, **values}


def analyze(
    analysis: Callable[..., Result],
    own: dict[str, Any],
    runs: Sequence[Path],
    best: bool = False,
    round: int | None = None,
    data_dir: Path | None = None,
    figure: Sequence[Path] = (),
    format: Format | None = None,
    device: Literal["cuda", "cpu"] = "cuda" if torch.cuda.is_available() else "cpu",
) -> None:
    """Print the table of an analysis, and draw the figures.

    Args:
        analysis: One of `ANALYSES`.
        own: Its options.
        runs: Folders of runs, or folders that contain runs.
        best: Analyze best.pt, the model of the best round, instead of model.pt.
        round: Analyze the checkpoint of this round instead.
        data_dir: The folder of the data; none for that of the run.
        figure: Draw into this .png, .pdf or .svg.
        format: Print the table in this format.
        device: The device to compute on.
    """
    check_figures(figure)
    readable = load_runs(runs, warn=lambda text: print(f"note: {text}", file=sys.stderr))
    found = [Run.read(run.path, data_dir) for run in readable]
    subjects = [Subject(run, own["split"], device, best, round) for run in found]
    numbers, caption, draw = analysis(dict(zip(_labels(found), subjects, strict=True)), **own)
    for file in figure:
        draw().save(file)
    table = Table(numbers.map(_text), caption=caption, numbers=numbers)
    table.show(format)


def _text(value: str | float) -> str:
    if isinstance(value, str):
        return value
    return "" if isnan(value) else f"{value:.4g}"


def _labels(runs: Sequence[Run]) -> list[str]:
    """A name for each run: its method and differing options, with the seed or folder if needed."""
    labels = Series(compare(runs, keep_all=True).row_names)
    seeds = Series([f", seed {run.config['seed']}" for run in runs])
    folders = Series([f" ({run.path})" for run in runs])
    for more in (seeds, folders):
        labels = labels.where(~labels.duplicated(keep=False), labels + more)
    return labels.tolist()
