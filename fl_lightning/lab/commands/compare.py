"""`fl-lightning compare`: runs as a table and as figures."""

import sys
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal

from pandas import Index, read_csv, to_numeric
from typing_extensions import Doc

from fl_lightning.cli.arguments import ArgumentParser, add_parameters, check_figures, options_of
from fl_lightning.cli.error_messages import exit_with_error
from fl_lightning.core.constraints import PositiveInt, Range, checked
from fl_lightning.errors import UserError
from fl_lightning.lab.report.comparison import Comparison
from fl_lightning.lab.report.comparison import compare as laid_out
from fl_lightning.lab.report.figure import against, curves
from fl_lightning.lab.report.grid import Published
from fl_lightning.lab.report.score import SCORES
from fl_lightning.lab.report.table import FORMATS, Format, Table
from fl_lightning.runs.run import load_runs

Percent = Annotated[float, Range("a percentage from 1 to 100", 1, 100)]
Scores = Annotated[tuple[str, ...], Doc(f"Scores: {', '.join(SCORES)}, or a tag of metrics.csv.")]


def main(argv: Sequence[str]) -> None:
    """Print the table that `argv` asks for, and draw the figures."""
    parser = ArgumentParser("fl-lightning compare", description=__doc__)
    add_parameters(parser, options_of(compare))
    try:
        compare(**vars(parser.parse_args(argv)))
    except (ValueError, OSError) as error:
        exit_with_error(str(error))


@checked
def compare(
    runs: Sequence[Path],
    rows: tuple[str, ...] = (),
    columns: tuple[str, ...] = (),
    score: Scores = (),
    target: Sequence[Percent] = (),
    over: str | None = None,
    spread: Literal["seeds", "rounds", "clients"] = "seeds",
    published: Path | None = None,
    label: Sequence[str] = (),
    format: Format | None = None,
    figure: Sequence[Path] = (),
    curve: str | None = None,
    smooth: PositiveInt = 1,
    x: str | None = None,
    log: bool = False,
) -> None:
    """Print the table of some runs, and draw the figures.

    Args:
        runs: Folders of runs, or folders that contain runs.
        rows: A row per combination of the values of these options; none for the method. Other
            options in which runs of one cell differ are added.
        columns: A column, and in the figure a panel, per combination of the values of these
            options, such as data,partition.
        score: A number follows a colon, as in rounds_to:80; none for last:10.
        target: Also show the rounds and megabytes to this test accuracy in percent.
        over: Show gains in accuracy, or speed-ups to targets, over this method or row.
        spread: The deviation shown: over seeds, or within each run over the last rounds or over
            clients.
        published: A CSV file of the same rows and columns, or without --columns of one column: show
            its numbers beside the first score, differences and Kendall's tau.
        label: Another name for a method, a value, a row, a column or the runs of a folder, as
            TEXT=LABEL.
        format: Print this instead of a terminal's table.
        figure: Draw curves into this .png, .pdf or .svg.
        curve: The scalar that is drawn, or a pattern such as 'test/class_*'; none for
            test/accuracy.
        smooth: Number of evaluations in each mean that is drawn.
        x: Draw the first score against this option, not curves.
        log: Draw a logarithmic axis for --x.
    """
    if not figure and (curve or smooth > 1 or log):
        raise UserError("--curve, --smooth and --log are for a figure: add --figure FILE")
    if x and (curve or smooth > 1):
        raise UserError("--x draws a score: omit --curve and --smooth")
    if log and not x:
        raise UserError("--log is the axis of an option: add --x OPTION")
    check_figures(figure)
    notes: list[str] = []
    found = load_runs(runs, warn=notes.append)
    x = _in_yaml(x) if x else None
    columns = (*map(_in_yaml, columns), *([x] if x else []))
    comparison = laid_out(
        found, [*map(_in_yaml, rows)] or ["method"], columns, dict(map(_label, label))
    )
    to_targets = [f"{spent}_to:{percent:g}" for percent in target for spent in ("rounds", "mb")]
    scores = [*(score or ["last"]), *to_targets]
    known = _published(published, bool(columns)) if published else None
    table = comparison.table(scores, spread=spread, over=over or "", published=known)
    for file in figure:
        if x:
            drawn = against(comparison, x, scores[0], log)
        else:
            drawn = curves(comparison, curve or "test/accuracy", smooth)
        drawn.savefig(file)
    print(FORMATS[format](table)) if format else table.show()
    for note in chain(notes, table.notes, _unused_labels(comparison, table)):
        print(f"note: {note}", file=sys.stderr)


def _in_yaml(option: str) -> str:
    """An option's name as in config.yaml: batch_size of batch-size."""
    return option.replace("-", "_")


def _published(file: Path, columns: bool) -> Published:
    frame = read_csv(file, index_col=0)
    if not columns:
        if len(frame.columns) != 1:
            raise UserError(f"{file} has {len(frame.columns)} columns of numbers: add --columns")
        frame.columns = Index([""])
    wrong = frame[frame.apply(to_numeric, errors="coerce").isna()].stack().dropna()
    if len(wrong):
        cell = wrong.iloc[0]
        raise UserError(f"{cell!r} in {file} is not a number: leave out deviations and units")
    published: dict[Any, Any] = frame.to_dict("index")
    return published


def _unused_labels(comparison: Comparison, table: Table) -> Iterator[str]:
    shown = " ".join([*comparison.row_names, *comparison.column_names, *table.text["method"]])
    for name, label in comparison.labels.items():
        if label not in shown:
            yield f"--label {name}={label} has no effect: nothing that is shown is called {name}"


def _label(text: str) -> tuple[str, str]:
    old, _, new = text.rpartition("=")
    if not old or not new:
        raise UserError(f"{text!r} is no label, such as 'fedtoga=FedTOGA (ours)'")
    return old, new
