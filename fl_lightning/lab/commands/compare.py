"""`fl-lightning compare`: runs as a table and as figures."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pandas import Index, read_csv, to_numeric
from typing_extensions import Doc

from fl_lightning.cli.arguments import ArgumentParser, add_parameters, check_figures, options_of
from fl_lightning.cli.error_messages import exit_with_message
from fl_lightning.core.constraints import PositiveInt, Range, checked
from fl_lightning.errors import UserError
from fl_lightning.lab import report
from fl_lightning.lab.report.grid import Published
from fl_lightning.lab.report.score import SCORES
from fl_lightning.lab.report.table import Format

Percent = Annotated[float, Range("a percentage from 1 to 100", 1, 100)]
Scores = Annotated[tuple[str, ...], Doc(f"Scores: {', '.join(SCORES)}, or a tag of metrics.csv.")]


def main(argv: Sequence[str]) -> None:
    """Print the table that `argv` asks for, and draw the figures."""
    parser = ArgumentParser("fl-lightning compare", description=__doc__)
    add_parameters(parser, options_of(compare))
    with exit_with_message():
        compare(**vars(parser.parse_args(argv)))


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
        rows: Options; each combination of their values is a row. Other options in which the runs of
            a cell differ are added; none for the method.
        columns: Options, such as data,partition; each combination of their values is a column, and
            a panel of the figure.
        score: Some take a number after a colon, such as rounds_to:80; none for last:10, or, of runs
            without accuracies, the mean of the last 10 evaluations of their first metric.
        target: Also show rounds and megabytes until this test accuracy, in percent.
        over: Compare with this row: gains in accuracy, speed-ups to targets.
        spread: Standard deviation over seeds, or, within each run, over the last rounds or over the
            clients.
        published: A CSV file of published numbers with the rows and columns of the table, or,
            without --columns, one column. They are compared with the first score.
        label: Another name for a method, a value, a row, a column, or the runs of a folder, as
            TEXT=LABEL.
        format: Print the table in this format.
        figure: Draw curves into this .png, .pdf or .svg.
        curve: The scalar to draw, or a pattern such as 'test/class_*'; none for test/accuracy,
            or the first metric of runs without it.
        smooth: Number of evaluations that each point is the mean of.
        x: Draw the first score against this option instead of curves.
        log: Make the axis of --x logarithmic.
    """
    if (curve or smooth > 1 or log) and not figure:
        raise UserError("--curve, --smooth and --log are for a figure: add --figure FILE")
    if x and (curve or smooth > 1):
        raise UserError("--x draws a score: omit --curve and --smooth")
    if log and not x:
        raise UserError("--log is the axis of an option: add --x OPTION")
    check_figures(figure)
    notes: list[str] = []
    found = report.load_runs(runs, warn=notes.append)
    x, labels = _in_yaml(x or ""), dict(map(_label, label))
    comparison = report.compare(
        found,
        [*map(_in_yaml, rows)] or ["method"],
        [*map(_in_yaml, columns), *filter(None, [x])],
        labels,
    )
    to_targets = [f"{spent}_to:{percent:g}" for percent in target for spent in ("rounds", "mb")]
    scores = [*(score or ["last"]), *to_targets]
    known = _published(published, bool(comparison.columns)) if published else None
    table = comparison.table(scores, spread=spread, over=over or "", published=known)
    for file in figure:
        if x:
            drawn = report.against(comparison, x, scores[0], log)
        else:
            drawn = report.curves(comparison, curve or report.main_tag(found), smooth)
        drawn.save(file)
    table.show(format)
    names = " ".join([*comparison.row_names, *comparison.column_names, *table.text["method"]])
    unused = [
        f"--label {text}={label} has no effect: nothing that is shown is called {text}"
        for text, label in labels.items()
        if label not in names
    ]
    for note in (*notes, *table.notes, *unused):
        print(f"note: {note}", file=sys.stderr)


def _in_yaml(option: str) -> str:
    """An option's name as in config.yaml: batch_size of batch-size."""
    return option.replace("-", "_")


def _published(file: Path, columns: bool) -> Published:
    try:
        frame = read_csv(file, index_col=0)
    except (OSError, ValueError) as error:
        raise UserError(f"{file} is no CSV file that can be read: {error}") from None
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


def _label(text: str) -> tuple[str, str]:
    old, _, new = text.rpartition("=")
    if not old or not new:
        raise UserError(f"{text!r} is no label, such as 'fedtoga=FedTOGA (ours)'")
    return old, new
