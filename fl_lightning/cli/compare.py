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
from fl_lightning.report.table import Table, across_table, scores_table
from fl_lightning.runs.run import found

SCORES = {"last": LAST, "best": BEST, "tail": TAIL}
FORMATS = {"markdown": Table.with_caption, "latex": Table.latex}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        exit_with_error(message)


def compare(argv: Sequence[str]) -> None:
    """Print the table that `argv` asks for, and draw the figure."""
    parser = _Parser("fl-lightning compare", description=__doc__, allow_abbrev=False)
    parser.add_argument(
        "runs", nargs="+", type=Path, help="folders of runs, or folders under which runs lie"
    )
    parser.add_argument(
        "--target",
        type=_percent,
        action="append",
        default=[],
        metavar="PERCENT",
        help="also tell after how many rounds and megabytes this test accuracy was reached; may be given several times",
    )
    parser.add_argument(
        "--across",
        metavar="OPTION",
        help="one column, and in the figure one panel, for each value of this option",
    )
    parser.add_argument(
        "--score",
        choices=SCORES,
        help="what the table across an option holds: the last test accuracy, the best, or the mean of the last ten "
        "evaluations (default: tail)",
    )
    parser.add_argument("--format", choices=FORMATS, help="instead of a table for the terminal")
    parser.add_argument(
        "--figure", type=Path, metavar="FILE", help="draw curves into this .png, .pdf or .svg"
    )
    parser.add_argument("--curve", metavar="TAG", help="of what (default: test/accuracy)")
    asked = parser.parse_args(argv)
    if asked.curve and not asked.figure:
        exit_with_error("--curve says what --figure FILE draws: give that too")
    if asked.score and not asked.across:
        exit_with_error(
            "--score says what the table --across OPTION holds: give that too, the other table holds all scores"
        )
    if asked.target and asked.across:
        exit_with_error("--target does not go with --across: leave one of them away")
    try:
        comparison = Comparison.of(found(asked.runs))
        table = (
            across_table(comparison, asked.across, SCORES[asked.score or "tail"])
            if asked.across
            else scores_table(comparison, asked.target)
        )
        if asked.figure:
            curves(comparison, asked.curve or "test/accuracy", asked.across).savefig(asked.figure)
    except (ValueError, OSError) as error:
        exit_with_error(str(error))
    if asked.format:
        print(FORMATS[asked.format](table))
    else:
        table.show()
    for note in comparison.notes:
        print(f"note: {note}", file=sys.stderr)


def _percent(text: str) -> float:
    try:
        percent = float(text)
    except ValueError:
        percent = 0.0
    if not 1 <= percent <= 100:
        raise argparse.ArgumentTypeError(
            f"give a percentage from 1 to 100, such as 80, not {text!r}"
        )
    return percent
