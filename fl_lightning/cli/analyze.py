"""`fl-lightning analyze`: curvature, loss surface, features and scores of trained models."""

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from pandas import DataFrame, Series
from torch import nn

from fl_lightning import analysis
from fl_lightning.analysis import figures
from fl_lightning.cli.compare import FORMATS
from fl_lightning.cli.error_messages import exit_with_message
from fl_lightning.cli.parser import ArgumentParser
from fl_lightning.data import DeviceDataset, aligned
from fl_lightning.report.comparison import Comparison
from fl_lightning.report.table import Table
from fl_lightning.runs.run import Run, load_runs


@dataclass(frozen=True)
class Subject:
    """A trained model and its data, on the device."""

    run: Run
    model: nn.Module
    data: DeviceDataset

    def loss(self, samples: int) -> analysis.MeanLoss:
        """Its mean loss on so many samples."""
        return analysis.MeanLoss(self.model, self.data, samples)


@dataclass(frozen=True)
class Result:
    """The numbers of an analysis, one row a run or a class, and its figure."""

    numbers: DataFrame
    caption: str
    draw: Callable[[], Figure]

    def table(self) -> Table:
        """The numbers as text."""
        text = self.numbers.map(_text)
        blank = DataFrame("", index=text.index, columns=text.columns)
        return Table(text, blank, self.caption, self.numbers)


Subjects = Mapping[str, Subject]
"""The runs by label."""


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


def _hessian(subjects: Subjects, o: argparse.Namespace) -> Result:
    results, rows = {}, []
    for label, subject in subjects.items():
        start = time.perf_counter()
        h = analysis.hessian(subject.loss(o.samples), o.top, o.vectors, o.steps)
        results[label] = h
        rows.append(
            {
                "run": label,
                "lambda_1": float(h.eigenvalues[0]),
                f"lambda_{o.top}": float(h.eigenvalues[-1]),
                f"lambda_1 / lambda_{o.top}": h.ratio,
                "trace": h.trace,
                "error of trace": h.trace_error,
                "seconds": time.perf_counter() - start,
            }
        )
    caption = f"Hessian of the mean loss on {_samples(subjects, o)}"
    return Result(DataFrame(rows), caption, lambda: figures.spectra(results))


def _surface(subjects: Subjects, o: argparse.Namespace) -> Result:
    axes = {"random": analysis.filter_normalized_axes, "hessian": analysis.hessian_axes}[o.axes]
    results, rows = {}, []
    for label, subject in subjects.items():
        start = time.perf_counter()
        loss = subject.loss(o.samples)
        results[label] = s = analysis.surface(loss, axes(loss), o.points, o.span)
        rows.append(
            {
                "run": label,
                "loss": float(loss(loss.weights)),
                "mean of the grid": float(s.loss.mean()),
                "highest": float(s.loss.max()),
                "seconds": time.perf_counter() - start,
            }
        )
    caption = f"mean loss on {_samples(subjects, o)}, {o.points} x {o.points} points, {o.axes} axes"
    name = "eigenvector" if o.axes == "hessian" else "direction"
    return Result(DataFrame(rows), caption, lambda: figures.surfaces(results, name))


def _interpolate(subjects: Subjects, o: argparse.Namespace) -> Result:
    if len(subjects) != 2:
        raise ValueError(f"interpolate takes two runs, not {len(subjects)}")
    (first, a), (second, b) = subjects.items()
    line = analysis.interpolate(a.model, b.model, a.data, o.samples, o.points, o.span)
    inside = (line.places >= 0) & (line.places <= 1)
    rows = [
        {
            "from": first,
            "to": second,
            "loss at both ends": " ".join(f"{x:.4g}" for x in line.loss[inside][[0, -1]].tolist()),
            "highest between": float(line.loss[inside].max()),
            "barrier": line.barrier,
            "lowest accuracy between": 100 * float(line.accuracy[inside].min()),
        }
    ]
    caption = f"mean loss and accuracy on {_samples(subjects, o)}"
    return Result(DataFrame(rows), caption, lambda: figures.interpolation(line, first, second))


def _features(subjects: Subjects, o: argparse.Namespace) -> Result:
    results, rows = {}, []
    for label, subject in subjects.items():
        seen = analysis.predict(subject.model, subject.data, o.samples)
        results[label] = analysis.embedding(seen.features, o.method), seen.y
        rows.append(
            {
                "run": label,
                "features": str(seen.features.shape[1]),
                "accuracy": 100 * float(seen.right.double().mean()),
                "silhouette": analysis.silhouette(seen.features, seen.y),
            }
        )
    caption = f"input of the head on {_samples(subjects, o)}; silhouette of the classes"
    classes = _classes_of(subjects)
    return Result(DataFrame(rows), caption, lambda: figures.embeddings(results, classes))


def _classes(subjects: Subjects, o: argparse.Namespace) -> Result:
    classes = _classes_of(subjects)
    results = {
        label: analysis.predict(s.model, s.data, o.samples).confusion()
        for label, s in subjects.items()
    }
    columns = {
        label: (100 * matrix.diag() / matrix.sum(1)).tolist() for label, matrix in results.items()
    }
    caption = f"accuracy on each class, {_samples(subjects, o)}"
    frame = DataFrame({"class": classes, **columns})
    return Result(frame, caption, lambda: figures.confusions(results, classes))


def _clients(subjects: Subjects, o: argparse.Namespace) -> Result:
    results, rows = {}, []
    for label, s in subjects.items():
        partition = s.run.partition()
        if o.split == "test":
            train = s.run.data()[0]
            counts = partition.histogram(train.y, len(train.classes))
            partition = aligned(s.data.y, counts, seed=s.run.options["seed"])
        results[label] = scores = analysis.predict(s.model, s.data).accuracy_by_client(partition)
        percent = Series(100 * scores).dropna()
        worst = percent.nsmallest(max(1, len(percent) // 10))
        rows.append(
            {
                "run": label,
                "clients": str(len(percent)),
                "mean": percent.mean(),
                "deviation": percent.std(),
                "lowest": percent.min(),
                "worst 10 %": worst.mean(),
                "highest": percent.max(),
            }
        )
    which = "own training samples" if o.split == "train" else "test samples like its own"
    caption = f"accuracy of the global model for each client on {which}"
    return Result(DataFrame(rows), caption, lambda: figures.client_histogram(results))


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


def _classes_of(subjects: Subjects) -> tuple[str, ...]:
    several = {s.data.classes for s in subjects.values()}
    if len(several) > 1:
        raise ValueError("these runs have data of different classes: analyze them one by one")
    return several.pop()


def _samples(subjects: Subjects, o: argparse.Namespace) -> str:
    available = len(next(iter(subjects.values())).data)
    count = min(o.samples or available, available)
    return f"{count:,} {'training' if o.split == 'train' else 'test'} samples"


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return "" if value != value else f"{value:.4g}"


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
        name = function.__name__.strip("_")
        command = kinds.add_parser(name, help=summary, description=summary, allow_abbrev=False)
        command.set_defaults(analysis=function)
        _shared_options(command, split, samples)
        return command.add_argument

    add = kind(_hessian, "top eigenvalues, trace and spectral density", "train", 1000)
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

    add = kind(_surface, "the loss on a plane through the model", "train", 2000)
    add("--points", type=int, default=25, help="points along each axis (default: %(default)s)")
    add("--span", type=float, default=1.0, help="length of both axes (default: %(default)s)")
    add(
        "--axes",
        choices=["random", "hessian"],
        default="random",
        help="random directions with the norms of the filters, or the eigenvectors of the two "
        "largest eigenvalues (default: %(default)s)",
    )

    add = kind(_interpolate, "loss and accuracy between the models of two runs", "train", None)
    add("--points", type=int, default=25, help="points between both (default: %(default)s)")
    add("--span", type=float, default=0.25, help="distance beyond both (default: %(default)s)")

    add = kind(_features, "the input of the head in the plane", "test", 1000)
    add(
        "--method",
        choices=["tsne", "umap"],
        default="tsne",
        help="umap needs the package umap-learn (default: %(default)s)",
    )

    kind(_classes, "the confusion matrix and the accuracy on each class", "test", None)
    kind(_clients, "the accuracy of each client", "test", None)
    return parser.parse_args(argv)


def _shared_options(parser: argparse.ArgumentParser, split: str, samples: int | None) -> None:
    add = parser.add_argument
    add("runs", nargs="+", type=Path, help="folders of runs, or folders that contain runs")
    add("--best", action="store_true", help="best.pt instead of model.pt")
    add(
        "--split",
        choices=["train", "test"],
        default=split,
        help="the samples that are used (default: %(default)s)",
    )
    add(
        "--samples",
        type=_positive,
        default=samples,
        metavar="N",
        help=f"use N random samples of them (default: {samples or 'all'})",
    )
    add("--data-dir", type=Path, help="the folder of the data, if it is not that of the run")
    add("--figure", type=Path, action="append", default=[], metavar="FILE",
        help="draw into this .png, .pdf or .svg; can be repeated")  # fmt: skip
    add("--format", choices=FORMATS, help="print this instead of a terminal's table")
    devices = ["cuda", "cpu"] if torch.cuda.is_available() else ["cpu"]
    add("--device", choices=devices, default=devices[0], help="(default: %(default)s)")


def _positive(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 1_000_000_000:
        raise argparse.ArgumentTypeError(f"{text!r} is no positive number, such as 25")
    return int(text)
