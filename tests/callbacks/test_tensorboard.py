"""TensorBoard: its scalars, hyper-parameters and pictures."""

import csv
import math
from io import BytesIO
from pathlib import Path
from threading import Thread
from typing import Any

import pictures
import pytest
import torch
from refusals import experiment
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

from fl_lightning import Partition
from fl_lightning.callbacks import TensorBoard, partition_heat_map


def read(folder: Path) -> EventAccumulator:
    events = EventAccumulator(str(folder))
    events.Reload()
    return events


def options(folder: Path) -> dict[str, Any]:
    """The run's row under HPARAMS, as TensorBoard's own reader finds it."""
    content = read(folder).SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    shown = HParamsPluginData.FromString(content).session_start_info.hparams
    return {name: getattr(value, value.WhichOneof("kind")) for name, value in shown.items()}


def column(folder: Path, tag: str) -> list[float]:
    with (folder / "metrics.csv").open(newline="") as file:
        return [float(row[tag]) for row in csv.DictReader(file) if row[tag]]


@pytest.fixture(scope="module")
def resumed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two rounds, then of four, then of six."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    with pictures.drawn():
        experiment(folder, "--rounds", "2", "--lr", "0.5").run()
    experiment(folder, "--rounds", "4", "--resume").run()
    experiment(folder, "--rounds", "6", "--resume").run()
    return folder


def test_accuracy_and_losses_come_first(resumed):
    tags = read(resumed).Tags()
    first = ["Accuracy/best", "Accuracy/test", "Loss/test", "Loss/train"]
    assert sorted(tags["scalars"])[:4] == first
    assert tags["images"] == ["partition"]


def test_best_is_the_running_maximum_also_over_a_resumption(resumed):
    accuracies, events = column(resumed, "test/accuracy"), read(resumed)
    best = [max(accuracies[: k + 1]) for k in range(6)]
    assert best != accuracies  # or this run shows nothing
    for tag, shown in {"test/accuracy": "Accuracy/test", "client/drift": "client/drift"}.items():
        scalars = {s.step: pytest.approx(s.value, rel=1e-6) for s in events.Scalars(shown)}
        assert scalars == dict(enumerate(column(resumed, tag), 1))
    assert [s.value for s in events.Scalars("Accuracy/best")] == pytest.approx(best)


def test_rounds_after_a_clock_that_went_back_are_shown(tmp_path, monkeypatch):
    for day in (2, 1):
        monkeypatch.setattr("time.time", lambda days=20000 + day: 86400.0 * days)
        logger = TensorBoard(tmp_path, after=2 - day)
        logger.log_metrics({"test/loss": 1.0}, 3 - day)
        logger.finalize("success")
    assert [scalar.step for scalar in read(tmp_path).Scalars("Loss/test")] == [1, 2]


def test_hparams_are_the_options_of_the_last_start(resumed):
    shown = options(resumed)
    expected = {"rounds": 6, "lr": 0.5, "clip_norm": "None", "algorithm": "fedavg"}
    assert expected.items() <= shown.items()


@pytest.mark.parametrize(("of", "title"), [(None, "each of 3"), (9, "the first 3 of 9")])
def test_the_partition_is_a_picture_of_samples_by_client_and_class(of, title):
    histogram = torch.tensor([[1, 2], [3, 4], [5, 6]])
    axes, *_ = partition_heat_map(histogram, ("a", "b"), of).axes
    assert title in axes.get_title()
    assert torch.from_numpy(axes.images[0].get_array().data).equal(histogram.T)
    assert [label.get_text() for label in axes.get_yticklabels()] == ["a", "b"]


def test_names_of_classes_are_no_formulas():
    names = "$5% to $10%", "$x$"
    figure = partition_heat_map(torch.tensor([[1, 2], [3, 4]]), names)
    figure.savefig(BytesIO())
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == [*names]


@pytest.mark.parametrize(("classes", "shown"), [(3, ["partition"]), (1001, [])])
def test_there_is_no_picture_of_more_classes_than_pixels(classes, shown, tmp_path):
    logger, names = TensorBoard(tmp_path), tuple(map(str, range(classes)))
    with pictures.drawn():
        logger.log_partition(Partition.from_lists([[0], [1]]), torch.tensor([0, 2]), names)
    logger.finalize("success")
    assert read(tmp_path).Tags()["images"] == shown


@pytest.mark.parametrize(("values", "shown"), [([math.inf, 2.0, math.nan], 1), ([math.inf], 0)])
def test_the_finite_scores_of_clients_are_shown(values, shown, tmp_path):
    logger = TensorBoard(tmp_path)
    logger.log_histogram("clients/perplexity", torch.tensor(values), 1)
    logger.finalize("success")
    events = read(tmp_path)
    found = events.Histograms("clients/perplexity") if shown else events.Tags()["histograms"]
    assert [event.histogram_value.num for event in found] == [1] * shown


def test_a_writer_that_ctrl_c_left_asleep_ends(tmp_path):
    """The interrupt came within `Queue.put`, which had not yet woken the thread."""
    logger = TensorBoard(tmp_path)
    logger.log_metrics({"test/loss": 1.0}, 1)
    logger.experiment.flush()
    queue = logger.experiment._get_file_writer().event_writer._async_writer._byte_queue
    with queue.mutex:
        queue._put(b"event")
        queue.unfinished_tasks += 1
    ends = Thread(target=logger.finalize, args=["failed"], daemon=True)
    ends.start()
    ends.join(30)
    assert not ends.is_alive()
