"""A run, its folder and its files."""

import os
import re
import sys
from io import BytesIO, TextIOWrapper
from pathlib import Path
from shlex import split
from typing import Any

import jobs
import pytest
import refusals
import torch

from fl_lightning import SequentialExecutor, StackedExecutor, models
from fl_lightning.core.vector import Layout
from fl_lightning.data import sources
from fl_lightning.executors import GraphExecutor
from fl_lightning.experiment import Experiment
from fl_lightning.runs.config import load
from fl_lightning.training import parts

TAGS = {"train/loss", "client/drift", "server/update_norm", "local/lr", "test/accuracy"}
TAGS |= {"client/distance", "client/pair_distance"}
TAGS |= {"test/loss", "comm/uplink_mb", "comm/downlink_mb"}
TIMES = {"time/train_s", "time/aggregate_s", "time/evaluate_s", "time/round_s"}


def experiment(folder: Path, *argv: str, **defaults: Any) -> Experiment:
    options = {"clients": 8, "rounds": 4, "batch_size": 32, "algorithm": "scaffold", **defaults}
    return refusals.experiment(folder, *argv, data=sources.digits, **options)


def table(folder: Path) -> list[dict[str, str]]:
    return jobs.results(folder)["metrics"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "one"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["digits.py", "--lr", "cosine(0.1, 0)"])
        experiment(folder).run()
    return folder


@pytest.mark.parametrize(
    ("flags", "device", "parameters", "kind", "width"),
    [
        ("", "cpu", 10**6, SequentialExecutor, 1),
        ("--executor stacked", "cpu", 10**6, StackedExecutor, 4),
        ("--compile", "cpu", 10**6, StackedExecutor, 1),
        ("--executor branches", "cpu", 10**6, GraphExecutor, 4),
        ("", "cuda", 10**6, GraphExecutor, 10),
        ("", "cuda", 10**7, GraphExecutor, 10),
        ("--executor stacked", "cuda", 10**7, GraphExecutor, 4),
        ("--executor sequential", "cuda", 10**6, SequentialExecutor, 1),
    ],
)
def test_options_device_and_model_choose_the_executor(
    flags, device, parameters, kind, width, tmp_path
):
    options = experiment(tmp_path, *flags.split(), parallel_clients=4).options
    module = models.mlp(64, 10)
    make = parts.executor(options, torch.device(device), parameters)
    executor = make(module, Layout(module))
    assert (type(executor), executor.width) == (kind, width)
    if kind is GraphExecutor:
        assert executor.stacked == ("stacked" in flags or (not flags and parameters < 5 * 10**6))


def test_metrics_csv_has_the_round_and_every_tag(finished):
    header = (finished / "metrics.csv").read_text().splitlines()[0].split(",")
    assert header[0] == "round"
    assert set(header) == {"round", *TAGS, *TIMES}
    assert [row["round"] for row in table(finished)] == ["1", "2", "3", "4"]
    assert all(row[tag] for row in table(finished) for tag in TAGS)


def test_the_configuration_repeats_the_run(finished, tmp_path):
    config = load((finished / "config.yaml").read_text())
    assert config["algorithm"].items() >= {"name": "scaffold", "correction_lr": "current"}.items()
    environment = load((finished / "environment.yaml").read_text())
    assert {"torch", "git_commit"} <= set(environment)
    assert split(environment["command"]) == ["digits.py", "--lr", "cosine(0.1, 0)"]
    again = tmp_path / "again"
    experiment(again, "--config", str(finished / "config.yaml"), algorithm="fedavg", rounds=1).run()
    assert jobs.results(again) == jobs.results(finished)


def test_the_saved_partition_can_be_used_again(finished, tmp_path):
    (file,) = finished.glob("partition-*.npz")
    experiment(tmp_path / "again", "--partition=from_file", f"--partition.file={file}").run()
    assert jobs.results(tmp_path / "again") == jobs.results(finished)


@pytest.mark.parametrize("source", ["clients", "test"])
def test_a_validation_part_is_scored_and_chooses_the_best_model(source, tmp_path, capsys):
    folder, (train, test) = tmp_path / "run", sources.digits()
    experiment(folder, "--validation", "0.2", "--validation-from", source).run()
    said = capsys.readouterr().out
    (part,) = re.findall(r"([\d,]+) samples of the (\w+) .*held out for validation", said)
    assert int(part[0]) == pytest.approx(0.2 * len(train if source == "clients" else test), abs=4)
    rows = table(folder)
    best = max(rows, key=lambda row: float(row["val/accuracy"]))
    assert f"{float(best['test/accuracy']):.2%} in round {best['round']}, chosen on val" in said
    state = torch.load(folder / "checkpoints" / "round-4.ckpt", weights_only=True)
    assert state["best"] == max(float(row["val/accuracy"]) for row in rows)
    with pytest.raises(SystemExit):
        experiment(folder, "--validation", "0.3", "--resume").run()


def test_validating_on_test_samples_trains_the_same_model(finished, tmp_path):
    experiment(tmp_path / "run", "--validation", "0.2", "--validation-from", "test").run()
    assert jobs.results(tmp_path / "run")["model"] == jobs.results(finished)["model"]
    scores = [float(row["test/accuracy"]) for row in table(tmp_path / "run")]
    assert all(score * 288 == pytest.approx(round(score * 288)) for score in scores)


def test_runs_without_a_named_folder_get_one_each(tmp_path, monkeypatch):
    """A run that is refused leaves none."""
    monkeypatch.chdir(tmp_path)

    def run(rounds: int) -> None:
        argv = "--accelerator", "cpu", "--rounds", str(rounds)
        Experiment([sources.digits], [models.mlp], algorithm="scaffold", argv=argv).run()

    with pytest.raises(SystemExit, match="2"):
        run(0)
    for _ in range(2):
        run(1)
    assert [p.name for p in sorted(tmp_path.rglob("scaffold-*"))] == ["scaffold-0", "scaffold-1"]


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ("", ["holds a run already"]),
        ("--resume --rounds 3", ["round 4", "3"]),
        ("--resume --precision bf16-mixed", ["precision was 32-true and is now bf16-mixed"]),
        ("--resume --lr 0.3 --seed 7", ["lr was 0.1 and is now 0.3", "seed was 0 and is now 7"]),
    ],
)
def test_another_run_in_a_folder_is_refused(argv, words, finished, sentence):
    before = (finished / "metrics.csv").read_text()
    said = sentence(experiment(finished, *argv.split()).run)
    assert all(word in said for word in words), said
    assert (finished / "metrics.csv").read_text() == before


def test_a_default_of_an_unknown_option_is_refused(tmp_path):
    with pytest.raises(TypeError, match="widht"):
        experiment(tmp_path, widht=4)


def test_an_output_that_lacks_characters_shows_escapes(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "stdout", TextIOWrapper(BytesIO(), "ascii"))
    experiment(tmp_path / "run", "--finetune-epochs=1", rounds=1).run()
    sys.stdout.seek(0)
    assert r"% \xb1 " in sys.stdout.read(), "mean and deviation over clients"


def test_a_run_whose_output_nobody_reads_ends_as_by_sigpipe(tmp_path, monkeypatch):
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as closed:
        monkeypatch.setattr(sys, "stdout", closed)
        with pytest.raises(SystemExit, match="141"):
            experiment(tmp_path / "run", rounds=1).run()
