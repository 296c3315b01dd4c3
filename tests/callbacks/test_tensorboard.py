"""What TensorBoard shows of a run beside its scalars."""

from pathlib import Path
from typing import Any

import runs
from refusals import experiment
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData


def options(folder: Path) -> dict[str, Any]:
    """The run's row under HPARAMS, as TensorBoard's own reader finds it."""
    events = EventAccumulator(str(folder))
    events.Reload()
    content = events.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    shown = HParamsPluginData.FromString(content).session_start_info.hparams
    return {name: getattr(value, value.WhichOneof("kind")) for name, value in shown.items()}


def test_hparams_are_those_of_the_last_start(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    experiment(folder, "--rounds", "2", "--lr", "0.25").run()
    assert (options(folder)["rounds"], options(folder)["lr"], options(folder)["clip"]) == (
        2,
        0.25,
        "None",
    )
    experiment(folder, "--rounds", "3", "--evaluate-every", "3", "--resume").run()
    shown = options(folder)
    assert (shown["rounds"], shown["evaluate_every"], shown["algorithm"]) == (3, 3, "fedavg")
    assert runs.steps_in_tensorboard(folder) == [(1, 2, 3)]


def test_the_options_come_before_the_scalars_in_the_order_of_names(tmp_path: Path) -> None:
    """TensorBoard's slow reader goes from file to file and never back."""
    folder = tmp_path / "run"
    experiment(folder).run()
    first, second = sorted(folder.glob("events*"))
    assert first.suffix == ".options"
    assert first.stat().st_size < second.stat().st_size
