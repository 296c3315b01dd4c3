"""`fl-lightning compare`: runs as a table and as curves."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from fl_lightning.cli.error_messages import exit_with_error
from fl_lightning.report.comparison import Comparison
from fl_lightning.report.figure import curves
from fl_lightning.report.score import BEST, LAST, TAIL
from fl_lightning.report.table import Table, pivot_table, scores_table
from fl_lightning.runs.run import load_runs

SCORES = {"last": LAST, "best": BEST, "tail": TAIL}
FORMATS = {"markdown": Table.with_caption, "latex": Table.latex}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        exit_with_error(message)


def compare(argv: Sequence[str]) -> None:
    """Print the table that `argv` asks for, and draw the figure."""
    options = _parse(argv)
    notes: list[str] = []
    try:
        comparison = Comparison.of(load_runs(options.runs, warn=notes.append))
        if options.across:
            table = pivot_table(comparison, options.across, SCORES[options.score or "tail"])
        else:
            table = scores_table(comparison, options.target)
        if options.figure:
            figure = curves(comparison, options.curve or "test/accuracy", options.across)
            figure.savefig(options.figure)
    except (ValueError, OSError) as error:
        exit_with_error(str(error))
    if options.format:
        print(FORMATS[options.format](table))
    else:
        table.show()
    for note in (*notes, *comparison.notes):
        print(f"note: {note}", file=sys.stderr)


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = _Parser("fl-lightning compare", description=__doc__, allow_abbrev=False)
    add = parser.add_argument
    add("runs", nargs="+", type=Path, help="folders of runs, or folders that contain runs")
    add(
        "--target",
        type=_percent,
        action="append",
        default=[],
        metavar="PERCENT",
        help="also show the rounds and megabytes to this test accuracy; can be repeated",
    )
    add(
        "--across",
        metavar="OPTION",
        help="one column, and in the figure one panel, per value of this option",
    )
    add(
        "--score",
        choices=SCORES,
        help="the score that --across shows: the last test accuracy, the best, or the mean of the "
        "last ten evaluations (default: tail)",
    )
    add("--format", choices=FORMATS, help="print Markdown or LaTeX instead of a terminal's table")
    add("--figure", type=Path, metavar="FILE", help="draw curves into this .png, .pdf or .svg")
    add("--curve", metavar="TAG", help="the scalar that --figure shows (default: test/accuracy)")
    options = parser.parse_args(argv)
    if options.curve and not options.figure:
        parser.error("--curve is the scalar of a figure: add --figure FILE")
    if options.score and not options.across:
        parser.error("--score is for the table --across OPTION; the other table shows all scores")
    if options.target and options.across:
        parser.error("--target and --across exclude each other: omit one")
    return options


def _percent(text: str) -> float:
    try:
        percent = float(text)
    except ValueError:
        percent = 0.0
    if not 1 <= percent <= 100:
        raise argparse.ArgumentTypeError(f"{text!r} is no percentage from 1 to 100, such as 80")
    return percent
