"""`fl-lightning analyze`: curvature, loss surface, features and scores of trained models."""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from pandas import Series

from fl_lightning.cli import analyses
from fl_lightning.cli.analyses import Result, Subject, Subjects
from fl_lightning.cli.error_messages import exit_with_message
from fl_lightning.cli.parser import ArgumentParser
from fl_lightning.report.comparison import Comparison
from fl_lightning.report.table import FORMATS
from fl_lightning.runs.run import Run, load_runs


def analyze(argv: Sequence[str]) -> None:
    """Print the table that `argv` asks for, and draw the figures."""
    options = _parse(argv)
    with exit_with_message():
        runs = load_runs(options.runs, warn=_note)
        runs = [Run.read(run.path, options.data_dir) for run in runs]
        subjects = dict(zip(_labels(runs), [_subject(run, options) for run in runs], strict=True))
        result: Result = options.analysis(subjects, options)
        for file in options.figure:
            result.draw().savefig(file)
    table = result.table()
    print(FORMATS[options.format](table)) if options.format else table.show()


def _subject(run: Run, o: argparse.Namespace) -> Subject:
    train, test = run.data()
    data, model = train if o.split == "train" else test, run.model(o.best)
    if not all(p.isfinite().all() for p in model.parameters()):
        raise ValueError(f"the model of {run.path} has weights that are not finite: try --best")
    return Subject(run, model.to(o.device), data.to(o.device))


def _labels(runs: Sequence[Run]) -> list[str]:
    """A name for each run: its method and differing options, with the seed or folder if needed."""
    labels = Series(Comparison(runs).rows)
    seeds = Series([f", seed {run.options['seed']}" for run in runs])
    folders = Series([f" ({run.path})" for run in runs])
    for more in (seeds, folders):
        labels = labels.where(~labels.duplicated(keep=False), labels + more)
    return labels.tolist()


def _note(text: str) -> None:
    print(f"note: {text}", file=sys.stderr)


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = ArgumentParser("fl-lightning analyze", description=__doc__, allow_abbrev=False)
    kinds = parser.add_subparsers(metavar="ANALYSIS", required=True)

    def kind(
        function: Callable[[Subjects, argparse.Namespace], Result],
        summary: str,
        split: str,
        samples: int | None,
    ) -> Callable[..., Any]:
        command = kinds.add_parser(
            function.__name__, help=summary, description=summary, allow_abbrev=False
        )
        command.set_defaults(analysis=function)
        _shared_options(command, split)
        if function is not analyses.clients:
            command.add_argument(
                "--samples",
                type=_positive,
                default=samples,
                metavar="N",
                help=f"use N random samples of them (default: {samples or 'all'})",
            )
        return command.add_argument

    add = kind(analyses.hessian, "top eigenvalues, trace and spectral density", "train", 1000)
    add("--top", type=_positive, default=5, help="number of eigenvalues (default: %(default)s)")
    add(
        "--vectors",
        type=_positive,
        default=4,
        help="random vectors for trace and density (default: %(default)s)",
    )
    add(
        "--steps",
        type=_positive,
        default=30,
        help="products for each vector (default: %(default)s)",
    )

    add = kind(analyses.surface, "the loss on a plane through the model", "train", 2000)
    add("--points", type=int, default=25, help="points along each axis (default: %(default)s)")
    add("--span", type=float, default=1.0, help="length of both axes (default: %(default)s)")
    add(
        "--axes",
        choices=["random", "hessian"],
        default="random",
        help="random directions with the norms of the filters, or the eigenvectors of the two "
        "largest eigenvalues (default: %(default)s)",
    )

    add = kind(
        analyses.interpolate, "loss and accuracy between the models of two runs", "train", None
    )
    add("--points", type=int, default=25, help="points between both (default: %(default)s)")
    add("--span", type=float, default=0.25, help="distance beyond both (default: %(default)s)")

    add = kind(analyses.features, "the input of the head in the plane", "test", 1000)
    add(
        "--method",
        choices=["tsne", "umap"],
        default="tsne",
        help="umap needs the package umap-learn (default: %(default)s)",
    )

    kind(analyses.classes, "the confusion matrix and the accuracy on each class", "test", None)
    kind(analyses.clients, "the accuracy of each client", "test", None)
    return parser.parse_args(argv)


def _shared_options(parser: argparse.ArgumentParser, split: str) -> None:
    add = parser.add_argument
    add("runs", nargs="+", type=Path, help="folders of runs, or folders that contain runs")
    add("--best", action="store_true", help="best.pt instead of model.pt")
    add(
        "--split",
        choices=["train", "test"],
        default=split,
        help="the samples that are used (default: %(default)s)",
    )
    add("--data-dir", type=Path, help="the folder of the data, if it is not that of the run")
    add("--figure", type=_figure, action="append", default=[], metavar="FILE",
        help="draw into this .png, .pdf or .svg; can be repeated")  # fmt: skip
    add("--format", choices=FORMATS, help="print this instead of a terminal's table")
    devices = ["cuda", "cpu"] if torch.cuda.is_available() else ["cpu"]
    add("--device", choices=devices, default=devices[0], help="(default: %(default)s)")


def _positive(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 1_000_000_000:
        raise argparse.ArgumentTypeError(f"{text!r} is no positive number, such as 25")
    return int(text)


def _figure(text: str) -> Path:
    """A file that can be written, checked before the analysis."""
    path = Path(text)
    if path.suffix not in (".png", ".pdf", ".svg") or not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is no .png, .pdf or .svg in an existing folder")
    return path
