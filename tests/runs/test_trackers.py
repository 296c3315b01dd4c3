"""Experiment trackers: the scalars and options of a run, and a resumed run continues its own."""

from typing import Any
from unittest.mock import Mock, call

import jobs
import pytest
from lightning.pytorch import loggers
from lightning.pytorch.loggers.logger import DummyLogger
from refusals import experiment

from fl_lightning.runs import loggers as ours
from fl_lightning.runs import options


def test_a_missing_tracker_is_one_sentence(tmp_path, monkeypatch, sentence):
    monkeypatch.setattr(options, "find_spec", lambda name: None)
    said = sentence(experiment, tmp_path / "run", "--logger", "wandb")
    assert "pip install wandb" in said


def test_a_tracker_that_does_not_start_is_one_sentence(tmp_path, monkeypatch, sentence):
    monkeypatch.setattr(options, "find_spec", lambda name: True)
    monkeypatch.setitem(ours.MAKERS, "wandb", Mock(side_effect=RuntimeError("No API\nkey.")))
    said = sentence(experiment(tmp_path / "run", "--logger", "wandb").run)
    assert "wandb does not start (No API key.)" in said
    assert not (tmp_path / "run").exists()


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_mlflow_gets_options_and_scalars_of_a_run_that_is_resumed(tmp_path, monkeypatch):
    """With its local file store."""
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file:{tmp_path}/mlruns")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    folder = tmp_path / "mine"
    experiment(folder, "--logger", "mlflow").run()
    experiment(folder, "--resume", "--rounds", "2", "--checkpoint-every", "1").run()
    client = mlflow.MlflowClient()
    (project,) = [e for e in client.search_experiments() if e.name != "Default"]
    (run,) = client.search_runs([project.experiment_id])
    assert (run.info.run_name, run.info.status) == ("mine", "FINISHED")
    assert run.data.params["partition"] == "dirichlet"
    rows = jobs.results(folder)["metrics"]
    for tag in ("test/accuracy", "train/loss"):
        logged = [(m.step, m.value) for m in client.get_metric_history(run.info.run_id, tag)]
        assert logged == [(int(row["round"]), float(row[tag])) for row in rows]


def test_trackio_gets_the_scalars(tmp_path, monkeypatch):
    """Its module is replaced: the package is large."""
    trackio = Mock()
    run = trackio.init.return_value
    monkeypatch.setattr(ours, "import_module", lambda name: trackio)
    monkeypatch.setattr("sys.argv", ["ipykernel_launcher.py"])
    for resume in ("never", "allow"):
        run.config = {}  # a resumed run has lost its options
        (logger,) = ours.start_trackers(["trackio"], tmp_path, {"algorithm": "mine"})
        logger.log_metrics({"test/accuracy": 0.5}, 3)
        logger.finalize("success")
        trackio.init.assert_called_with("notebook", tmp_path.name, resume=resume, embed=False)
        assert run.config == {"algorithm": "mine"}
    assert run.log.call_args_list == [call({"test/accuracy": 0.5}, 3)] * 2
    assert trackio.finish.call_count == 2


def test_wandb_gets_a_run_of_its_own(tmp_path, monkeypatch):
    """Beside one that another fit of this process has begun; its logger is replaced."""
    made = list[dict[str, Any]]()

    class Replaced(DummyLogger):
        def __init__(self, *_: Any, **given: Any):
            made.append(given)

    monkeypatch.setattr(loggers, "WandbLogger", Replaced)
    ours.start_trackers(["wandb"], tmp_path, {})
    assert made[0]["reinit"] == "create_new"
