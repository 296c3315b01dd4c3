"""The analyses of `fl-lightning analyze`: numbers for a table, and a figure."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Annotated, Any, Literal, NamedTuple

import torch
from pandas import DataFrame, Series, read_csv
from torch import Tensor, nn
from typing_extensions import Doc

from fl_lightning.callbacks.bases import over_clients
from fl_lightning.callbacks.global_measures import TABLE
from fl_lightning.cli.choices import read_component
from fl_lightning.core.constraints import (
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    Range,
    checked,
)
from fl_lightning.core.losses import TaskLoss
from fl_lightning.data import DeviceDataset, matched_test_split, own_test_split
from fl_lightning.errors import UserError, nearest
from fl_lightning.lab import analysis
from fl_lightning.lab.analysis import figures
from fl_lightning.lab.displayed import Figure
from fl_lightning.runs.run import Run
from fl_lightning.training import parts

Split = Annotated[Literal["train", "test"], Doc("Samples to use: the training or the test set.")]
Samples = Annotated[PositiveInt | None, Doc("Number of samples, drawn at random; none for all.")]
Points = Annotated[int, Range("a whole number of at least 2", 2, whole=True)]


@dataclass(frozen=True)
class Subject:
    """A run with its trained model and its data, which are loaded when they are needed.

    The model is the last one, the `best` one, or the one in the checkpoint of a `round`.
    """

    run: Run
    split: Split
    device: str
    best: bool = False
    round: int | None = None

    @cached_property
    def model(self) -> nn.Module:
        """The model."""
        return self.run.model(best=self.best, round=self.round).to(self.device)

    @cached_property
    def data(self) -> DeviceDataset:
        """The samples."""
        train, test = self.run.data()
        return (train if self.split == "train" else test).to(self.device)

    @property
    def task_loss(self) -> TaskLoss:
        """The run's loss of a batch."""
        return parts.loss(read_component("loss", self.run.config["loss"]))

    def loss(self, samples: int | None) -> analysis.MeanLoss:
        """The mean of the run's loss on some samples."""
        return analysis.MeanLoss(self.model, self.data, samples, loss=self.task_loss)

    def predictions(self, samples: int | None = None) -> analysis.Predictions:
        """What the model makes of some samples; a UserError if the targets are no classes."""
        if not self.data.classes:
            raise UserError(f"targets of {self.run.path} are no classes: choose another analysis")
        return analysis.predict(self.model, self.data, samples)


Subjects = Mapping[str, Subject]
"""The runs by label."""


class Result(NamedTuple):
    """The numbers of an analysis, what they are, and its figure."""

    numbers: DataFrame
    caption: str
    draw: Callable[[], Figure]


@checked
def hessian(
    subjects: Subjects,
    samples: Samples = 1000,
    split: Split = "train",
    top: PositiveInt = 5,
    vectors: PositiveInt = 4,
    steps: PositiveInt = 30,
) -> Result:
    """Top eigenvalues, trace and spectral density of the Hessian.

    Args:
        top: Number of eigenvalues.
        vectors: Random vectors for trace and density.
        steps: Products for each vector.
    """
    found = {
        label: analysis.hessian(subject.loss(samples), top, vectors, steps)
        for label, subject in subjects.items()
    }
    rows = {
        label: {
            "lambda_1": float(h.eigenvalues[0]),
            f"lambda_{top}": float(h.eigenvalues[-1]),
            f"lambda_1 / lambda_{top}": h.ratio,
            "trace": h.trace,
            "error of trace": h.trace_error,
        }
        for label, h in found.items()
    }
    caption = f"Hessian of the mean loss on {_samples(subjects, samples, split)}"
    return Result(_by_run(rows), caption, partial(figures.spectra, found))


@checked
def surface(
    subjects: Subjects,
    samples: Samples = 2000,
    split: Split = "train",
    points: Points = 25,
    span: PositiveFloat = 1.0,
    axes: Literal["random", "hessian"] = "random",
) -> Result:
    """The loss on a plane through the model.

    Args:
        points: Points along each axis.
        span: How far each axis goes in both directions, in lengths of its vector.
        axes: Random vectors with the norms of the filters, or the eigenvectors of the two largest
            eigenvalues of the Hessian.
    """
    find = {"random": analysis.filter_normalized_axes, "hessian": analysis.hessian_axes}[axes]
    losses = {label: subject.loss(samples) for label, subject in subjects.items()}
    found = {k: analysis.surface(loss, find(loss), points, span) for k, loss in losses.items()}
    rows = {
        label: {
            "loss": float(losses[label](losses[label].weights)),
            "mean of the grid": float(s.loss.mean()),
            "highest": float(s.loss.max()),
        }
        for label, s in found.items()
    }
    of = _samples(subjects, samples, split)
    name = "eigenvector" if axes == "hessian" else "direction"
    caption = f"mean loss on {of}, {points} x {points} points, {axes} axes"
    return Result(_by_run(rows), caption, partial(figures.surfaces, found, name))


@checked
def interpolate(
    subjects: Subjects,
    samples: Samples = None,
    split: Split = "train",
    points: Points = 25,
    span: NonNegativeFloat = 0.25,
) -> Result:
    """Loss and accuracy on the line between the models of two runs.

    Args:
        points: Points from one model to the other.
        span: How far the line goes beyond both models, in their distance.
    """
    if len(subjects) != 2:
        raise UserError(f"interpolate takes two runs, not {len(subjects)}")
    (first, a), (second, b) = subjects.items()
    if a.run.config["loss"] != b.run.config["loss"]:
        raise UserError("these runs have different losses: interpolate between two of one loss")
    line = analysis.interpolate(a.model, b.model, a.data, samples, points, span, a.task_loss)
    inside = (line.places >= 0) & (line.places <= 1)
    row = {
        "from": first,
        "to": second,
        "loss at both ends": " ".join(f"{x:.4g}" for x in line.loss[inside][[0, -1]].tolist()),
        "highest between": float(line.loss[inside].max()),
        "barrier": line.barrier,
        "lowest accuracy between": 100 * float(line.accuracy[inside].min()),
    }
    caption = f"mean loss and accuracy on {_samples({first: a}, samples, split)} of the first run"
    draw = partial(figures.interpolation, line, first, second)
    return Result(DataFrame([row]), caption, draw)


@checked
def features(
    subjects: Subjects,
    samples: Samples = 1000,
    split: Split = "test",
    method: Literal["tsne", "umap"] = "tsne",
) -> Result:
    """The features, which are the input of the head, in two dimensions.

    Args:
        method: The embedding; umap needs the package umap-learn.
    """
    seen = {label: subject.predictions(samples) for label, subject in subjects.items()}
    planes = {k: (analysis.embedding(p.features, method), p.y) for k, p in seen.items()}
    rows = {
        label: {
            "features": str(p.features.shape[1]),
            "accuracy": 100 * float(p.right.double().mean()),
            "silhouette": analysis.silhouette(p.features, p.y),
        }
        for label, p in seen.items()
    }
    of = _samples(subjects, samples, split)
    caption = f"input of the head on {of}; silhouette of the classes"
    return Result(_by_run(rows), caption, partial(figures.embeddings, planes, _classes(subjects)))


@checked
def classes(subjects: Subjects, samples: Samples = None, split: Split = "test") -> Result:
    """The confusion matrix and the accuracy on each class."""
    names = _classes(subjects)
    found = {label: s.predictions(samples).confusion(len(names)) for label, s in subjects.items()}
    shares = {label: 100 * matrix.diag() / matrix.sum(1) for label, matrix in found.items()}
    columns = {k: share[: len(names)].tolist() for k, share in shares.items()}  # or more outputs
    caption = f"accuracy on each class, {_samples(subjects, samples, split)}"
    numbers = DataFrame({"class": names, **columns})
    return Result(numbers, caption, partial(figures.confusions, found, names))


def clients(subjects: Subjects, split: Split = "test", metric: str | None = None) -> Result:
    """The accuracy of the global model for each client, or another score that the run has recorded.

    Args:
        metric: A column of clients.csv, which --callback client_scores writes, in its last round;
            none for the accuracy.
    """
    made = {label: _scores_by_client(s, metric) for label, s in subjects.items()}
    found = {label: scores for label, (scores, _) in made.items()}
    which, name = sorted({which for _, which in made.values()}), metric or "accuracy"
    unit, rows = 100 if metric is None or "accuracy" in metric else 1, {}
    for label, scores in found.items():
        values = Series(unit * scores).dropna()
        recorded = subjects[label].run.larger_is_better(name)
        spread = over_clients(name, torch.tensor(values.to_numpy()), larger=recorded)
        rows[label] = {
            "clients": str(len(values)),
            "mean": values.mean(),
            "deviation": values.std(ddof=0),
            "lowest": values.min(),
            "worst 10 %": spread[f"{name}_worst10"],
            "highest": values.max(),
        }
    caption = f"{name} of the global model for each client on {' or '.join(which)}"
    return Result(_by_run(rows), caption, partial(figures.client_histogram, found, name, unit))


def _recorded_by_client(subject: Subject, metric: str) -> Tensor:
    if subject.best or subject.round is not None or subject.split == "train":
        raise UserError(
            "--metric is of the last model on test samples: omit --best, --round and --split"
        )
    file = subject.run.path / TABLE
    if not file.is_file():
        raise UserError(f"there is no {file}: train with --callback client_scores")
    table = read_csv(file)
    if metric not in table:
        raise UserError(f"{file} has no column {metric!r}{nearest(metric, table.columns)}")
    return torch.tensor(table[table["round"] == table["round"].max()][metric].to_numpy())


def _scores_by_client(subject: Subject, metric: str | None) -> tuple[Tensor, str]:
    if metric is not None:
        return _recorded_by_client(subject, metric), "its own test samples"
    predictions, partition = subject.predictions(), subject.run.partition()
    train, test = subject.run.data()
    if subject.split == "train":
        return predictions.accuracy_by_client(partition), "own training samples"
    if own := own_test_split(train, test, partition):
        return predictions.accuracy_by_client(own), "its own test samples"
    counts = partition.histogram(train.y, len(train.classes))
    like = matched_test_split(test.y, counts, seed=subject.run.config["seed"])
    return predictions.accuracy_by_client(like), "test samples like its own"


def _classes(subjects: Subjects) -> tuple[str, ...]:
    several = {s.data.classes for s in subjects.values()}
    if len(several) > 1:
        raise UserError("these runs have data of different classes: analyze them one by one")
    return several.pop()


def _samples(subjects: Subjects, samples: int | None, split: str) -> str:
    counts = sorted({min(samples or len(s.data), len(s.data)) for s in subjects.values()})
    shown = " or ".join(f"{count:,}" for count in counts)
    return f"{shown} {'training' if split == 'train' else 'test'} samples"


def _by_run(rows: Mapping[str, Mapping[str, Any]]) -> DataFrame:
    return DataFrame({"run": label, **row} for label, row in rows.items())
