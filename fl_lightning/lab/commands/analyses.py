"""The analyses of `fl-lightning analyze`: numbers for a table, and a figure."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil
from typing import Annotated, Any, Literal

from matplotlib.figure import Figure
from pandas import DataFrame, Series
from torch import nn
from typing_extensions import Doc

from fl_lightning.core.constraints import PositiveInt, checked
from fl_lightning.data import DeviceDataset, matched_test_split
from fl_lightning.errors import UserError
from fl_lightning.lab import analysis
from fl_lightning.lab.analysis import figures
from fl_lightning.lab.report.table import Table
from fl_lightning.runs.run import Run

Split = Annotated[Literal["train", "test"], Doc("The samples that are used.")]
Samples = Annotated[PositiveInt | None, Doc("Number of samples, drawn at random; none for all.")]


@dataclass(frozen=True)
class Subject:
    """A trained model and its data, on the device."""

    run: Run
    model: nn.Module
    data: DeviceDataset


Result = tuple[Table, Callable[[], Figure]]
"""The numbers of an analysis, one row a run or a class, and its figure."""

Subjects = Mapping[str, Subject]
"""The runs by label."""


@checked
def hessian(
    subjects: Subjects,
    samples: Samples = 1000,
    split: Split = "train",
    top: PositiveInt = 5,
    vectors: PositiveInt = 4,
    steps: PositiveInt = 30,
) -> Result:
    """Top eigenvalues, trace and spectral density.

    Args:
        subjects: The runs.
        top: Number of eigenvalues.
        vectors: Random vectors for trace and density.
        steps: Products for each vector.
    """
    results, rows = {}, []
    for label, subject in subjects.items():
        start = time.perf_counter()
        h = analysis.hessian(_loss(subject, samples), top, vectors, steps)
        results[label] = h
        rows.append(
            {
                "run": label,
                "lambda_1": float(h.eigenvalues[0]),
                f"lambda_{top}": float(h.eigenvalues[-1]),
                f"lambda_1 / lambda_{top}": h.ratio,
                "trace": h.trace,
                "error of trace": h.trace_error,
                "seconds": time.perf_counter() - start,
            }
        )
    caption = f"Hessian of the mean loss on {_samples(subjects, samples, split)}"
    return _table(rows, caption), lambda: figures.spectra(results)


@checked
def surface(
    subjects: Subjects,
    samples: Samples = 2000,
    split: Split = "train",
    points: int = 25,
    span: float = 1.0,
    axes: Literal["random", "hessian"] = "random",
) -> Result:
    """The loss on a plane through the model.

    Args:
        subjects: The runs.
        points: Points along each axis.
        span: Length of both axes.
        axes: Random directions with the norms of the filters, or the eigenvectors of the two
            largest eigenvalues.
    """
    find = {"random": analysis.filter_normalized_axes, "hessian": analysis.hessian_axes}[axes]
    results, rows = {}, []
    for label, subject in subjects.items():
        start = time.perf_counter()
        loss = _loss(subject, samples)
        results[label] = s = analysis.surface(loss, find(loss), points, span)
        rows.append(
            {
                "run": label,
                "loss": float(loss(loss.weights)),
                "mean of the grid": float(s.loss.mean()),
                "highest": float(s.loss.max()),
                "seconds": time.perf_counter() - start,
            }
        )
    grid = f"{points} x {points} points, {axes} axes"
    caption = f"mean loss on {_samples(subjects, samples, split)}, {grid}"
    name = "eigenvector" if axes == "hessian" else "direction"
    return _table(rows, caption), lambda: figures.surfaces(results, name)


@checked
def interpolate(
    subjects: Subjects,
    samples: Samples = None,
    split: Split = "train",
    points: int = 25,
    span: float = 0.25,
) -> Result:
    """Loss and accuracy between the models of two runs.

    Args:
        subjects: The runs.
        points: Points between both.
        span: Distance beyond both.
    """
    if len(subjects) != 2:
        raise UserError(f"interpolate takes two runs, not {len(subjects)}")
    (first, a), (second, b) = subjects.items()
    line = analysis.interpolate(a.model, b.model, a.data, samples, points, span)
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
    caption = f"mean loss and accuracy on {_samples(subjects, samples, split)}"
    return _table(rows, caption), lambda: figures.interpolation(line, first, second)


@checked
def features(
    subjects: Subjects,
    samples: Samples = 1000,
    split: Split = "test",
    method: Literal["tsne", "umap"] = "tsne",
) -> Result:
    """The input of the head in the plane.

    Args:
        subjects: The runs.
        method: The embedding; umap needs the package umap-learn.
    """
    results, rows = {}, []
    for label, subject in subjects.items():
        seen = analysis.predict(subject.model, subject.data, samples)
        results[label] = analysis.embedding(seen.features, method), seen.y
        rows.append(
            {
                "run": label,
                "features": str(seen.features.shape[1]),
                "accuracy": 100 * float(seen.right.double().mean()),
                "silhouette": analysis.silhouette(seen.features, seen.y),
            }
        )
    caption = (
        f"input of the head on {_samples(subjects, samples, split)}; silhouette of the classes"
    )
    classes = _classes_of(subjects)
    return _table(rows, caption), lambda: figures.embeddings(results, classes)


@checked
def classes(subjects: Subjects, samples: Samples = None, split: Split = "test") -> Result:
    """The confusion matrix and the accuracy on each class."""
    classes = _classes_of(subjects)
    results = {
        label: analysis.predict(s.model, s.data, samples).confusion()
        for label, s in subjects.items()
    }
    columns = {
        label: (100 * matrix.diag() / matrix.sum(1)).tolist() for label, matrix in results.items()
    }
    caption = f"accuracy on each class, {_samples(subjects, samples, split)}"
    rows = {"class": classes, **columns}
    return _table(rows, caption), lambda: figures.confusions(results, classes)


def clients(subjects: Subjects, split: Split = "test") -> Result:
    """The accuracy of the global model for each client."""
    results, rows = {}, []
    for label, s in subjects.items():
        partition = s.run.partition()
        if split == "test":
            train = s.run.data()[0]
            counts = partition.histogram(train.y, len(train.classes))
            partition = matched_test_split(s.data.y, counts, seed=s.run.config["seed"])
        results[label] = scores = analysis.predict(s.model, s.data).accuracy_by_client(partition)
        percent = Series(100 * scores).dropna()
        worst = percent.nsmallest(ceil(len(percent) / 10))
        rows.append(
            {
                "run": label,
                "clients": str(len(percent)),
                "mean": percent.mean(),
                "deviation": percent.std(ddof=0),
                "lowest": percent.min(),
                "worst 10 %": worst.mean(),
                "highest": percent.max(),
            }
        )
    which = "own training samples" if split == "train" else "test samples like its own"
    caption = f"accuracy of the global model for each client on {which}"
    return _table(rows, caption), lambda: figures.client_histogram(results)


def _classes_of(subjects: Subjects) -> tuple[str, ...]:
    several = {s.data.classes for s in subjects.values()}
    if len(several) > 1:
        raise UserError("these runs have data of different classes: analyze them one by one")
    return several.pop()


def _loss(subject: Subject, samples: int | None) -> analysis.MeanLoss:
    return analysis.MeanLoss(subject.model, subject.data, samples)


def _samples(subjects: Subjects, samples: int | None, split: str) -> str:
    available = len(next(iter(subjects.values())).data)
    count = min(samples or available, available)
    return f"{count:,} {'training' if split == 'train' else 'test'} samples"


def _table(rows: Any, caption: str) -> Table:
    numbers = DataFrame(rows)
    text = numbers.map(_text)
    return Table(text, text.map(lambda _: ""), caption, numbers)


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return "" if value != value else f"{value:.4g}"
