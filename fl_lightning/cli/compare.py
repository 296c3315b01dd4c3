"""`fl-lightning compare`: runs as a table and as figures."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from pandas import read_csv

from fl_lightning.cli.error_messages import exit_with_error
from fl_lightning.cli.parser import ArgumentParser
from fl_lightning.report.comparison import Comparison
from fl_lightning.report.figure import against, curves
from fl_lightning.report.score import SCORES
from fl_lightning.report.table import FORMATS
from fl_lightning.runs.run import TAIL_LENGTH, load_runs


def compare(argv: Sequence[str]) -> None:
    """Print the table that `argv` asks for, and draw the figure."""
    options = _parse(argv)
    notes: list[str] = []
    try:
        runs = load_runs(options.runs, warn=notes.append)
        across = [*options.across, *([options.x] if options.x else [])]
        comparison = Comparison.of(runs, across, dict(options.label))
        scores = _scores(options, comparison)
        table = comparison.table(
            scores,
            spread=options.spread,
            over=options.over,
            cost=options.cost,
            means=comparison.means(options.mean_over) if options.mean_over else None,
            published=_published(options.published) if options.published else None,
        )
        for file in options.figure:
            if options.x:
                figure = against(comparison, options.x, scores[0], options.log)
            else:
                figure = curves(comparison, options.curve or "test/accuracy", options.smooth)
            figure.savefig(file)
    except (ValueError, OSError) as error:
        exit_with_error(str(error))
    if options.format:
        print(FORMATS[options.format](table))
    else:
        table.show()
    for note in (*notes, *comparison.notes):
        print(f"note: {note}", file=sys.stderr)


def _scores(options: argparse.Namespace, comparison: Comparison) -> list[str]:
    """The names of the scores to show; those of clients' own models where they were recorded."""
    to_targets = [f"rounds_to:{target:g}" for target in options.target]
    if options.score or options.across or options.x:
        names = [*(options.score or ["last"] * (not to_targets)), *to_targets]
    else:
        to_targets += [f"mb_to:{target:g}" for target in options.target]
        tags = sorted({tag for run in comparison.runs for tag in run.scalars})
        own = [
            f"personal:{t.rpartition('_')[2]}" for t in tags if t.startswith("personal/accuracy")
        ]
        names = ["final", "best", "last", *to_targets, *own, "round_seconds"]
    return [f"last:{options.last}" if name == "last" else name for name in names]


def _published(file: Path) -> dict[str, dict[str, float]]:
    """The numbers of a CSV file whose first column and first line name rows and columns."""
    return read_csv(file, index_col=0).to_dict("index")  # type: ignore[return-value]


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = ArgumentParser("fl-lightning compare", description=__doc__, allow_abbrev=False)
    table = parser.add_argument_group("table")
    parser.add_argument(
        "runs", nargs="+", type=Path, help="folders of runs, or folders that contain runs"
    )
    add = table.add_argument
    add(
        "--across",
        type=_options,
        default=[],
        metavar="OPTION,...",
        help="one column, and in the figure one panel, per combination of the values of these "
        "options, such as data,partition,clients",
    )
    add(
        "--score",
        type=_options,
        metavar="NAME,...",
        help=f"the scores to show: {', '.join(SCORES)}, or a tag of metrics.csv; a number follows "
        "a colon, as in rounds_to:80 (default with --across: last)",
    )
    add(
        "--last",
        type=_count,
        default=TAIL_LENGTH,
        metavar="K",
        help="evaluations of which the score `last` is the mean (default: %(default)s)",
    )
    add(
        "--spread",
        choices=["seeds", "rounds", "clients"],
        default="seeds",
        help="the deviation shown: over seeds, or within each run over the last rounds or over "
        "clients (default: %(default)s)",
    )
    add(
        "--target",
        type=_percent,
        action="append",
        default=[],
        metavar="PERCENT",
        help="also show the rounds and megabytes to this test accuracy; can be repeated",
    )
    add("--over", metavar="METHOD", help="show speed-ups to targets over this method")
    add("--cost", action="store_true", help="show scores to targets in multiples of the smallest")
    add(
        "--mean-over",
        type=_options,
        default=[],
        metavar="OPTION,...",
        help="add the means of the columns over the values of these options of --across",
    )
    add(
        "--published",
        type=Path,
        metavar="FILE",
        help="a CSV file of the same rows and columns: show its numbers, differences and "
        "Kendall's tau",
    )
    add(
        "--label",
        type=_label,
        action="append",
        default=[],
        metavar="TEXT=LABEL",
        help="another name for a method, a row, a column or the runs of a folder; can be repeated",
    )
    add("--format", choices=FORMATS, help="print this instead of a terminal's table")
    add = parser.add_argument_group("figure").add_argument
    add(
        "--figure",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="draw curves into this .png, .pdf or .svg; can be repeated",
    )
    add("--curve", metavar="TAG", help="the scalar that is drawn (default: test/accuracy)")
    add(
        "--smooth",
        type=_count,
        default=1,
        metavar="K",
        help="draw the means of K evaluations (default: %(default)s)",
    )
    add("--x", metavar="OPTION", help="draw the first score against this option, not curves")
    add("--log", action="store_true", help="a logarithmic axis for --x")
    options = parser.parse_args(argv)
    if not options.figure and (options.curve or options.smooth > 1 or options.log):
        parser.error("--curve, --smooth and --log are for a figure: add --figure FILE")
    if options.x and (options.curve or options.smooth > 1):
        parser.error("--x draws a score: omit --curve and --smooth")
    if options.log and not options.x:
        parser.error("--log is the axis of an option: add --x OPTION")
    return options


def _options(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _label(text: str) -> tuple[str, str]:
    old, _, new = text.rpartition("=")
    if not old or not new:
        raise argparse.ArgumentTypeError(f"{text!r} is no label, such as 'fedtoga=FedTOGA (ours)'")
    return old, new


def _count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 1_000_000:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of evaluations, such as 50")
    return int(text)


def _percent(text: str) -> float:
    try:
        percent = float(text)
    except ValueError:
        percent = 0.0
    if not 1 <= percent <= 100:
        raise argparse.ArgumentTypeError(f"{text!r} is no percentage from 1 to 100, such as 80")
    return percent
