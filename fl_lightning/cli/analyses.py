"""The analyses of `fl-lightning analyze`: numbers for a table, and a figure."""

import time
from argparse import Namespace
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure
from pandas import DataFrame, Series
from torch import nn

from fl_lightning import analysis
from fl_lightning.analysis import figures
from fl_lightning.data import DeviceDataset, aligned
from fl_lightning.report.table import Table
from fl_lightning.runs.run import Run


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


def hessian(subjects: Subjects, o: Namespace) -> Result:
    """Top eigenvalues, trace and spectral density."""
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


def surface(subjects: Subjects, o: Namespace) -> Result:
    """The loss on a plane through each model."""
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


def interpolate(subjects: Subjects, o: Namespace) -> Result:
    """Loss and accuracy between the models of two runs."""
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


def features(subjects: Subjects, o: Namespace) -> Result:
    """The input of the head in the plane."""
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


def classes(subjects: Subjects, o: Namespace) -> Result:
    """The confusion matrix and the accuracy on each class."""
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


def clients(subjects: Subjects, o: Namespace) -> Result:
    """The accuracy of the global model for each client."""
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


def _classes_of(subjects: Subjects) -> tuple[str, ...]:
    several = {s.data.classes for s in subjects.values()}
    if len(several) > 1:
        raise ValueError("these runs have data of different classes: analyze them one by one")
    return several.pop()


def _samples(subjects: Subjects, o: Namespace) -> str:
    available = len(next(iter(subjects.values())).data)
    count = min(o.samples or available, available)
    return f"{count:,} {'training' if o.split == 'train' else 'test'} samples"


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return "" if value != value else f"{value:.4g}"
