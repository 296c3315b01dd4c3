"""A run, its folder and its files."""

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from lightning.fabric import Fabric
from refusals import sentence
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from fl_lightning import Algorithm, ClientData, Federation, models
from fl_lightning.data import schemes, sources
from fl_lightning.experiment import Experiment

TAGS = {
    "train/loss",
    "client/drift",
    "server/update_norm",
    "local/lr",
    "comm/uplink_mb",
    "comm/downlink_mb",
    "test/accuracy",
    "test/loss",
    "time/train_s",
    "time/aggregate_s",
    "time/evaluate_s",
    "time/round_s",
}


def experiment(folder: Path, *argv: str, **defaults: Any) -> Experiment:
    options: dict[str, Any] = {"clients": 8, "participation": 0.5, "rounds": 4, "batch_size": 32}
    arguments = ["--run-dir", str(folder), "--accelerator", "cpu", *argv]
    options = {**options, "algorithm": "scaffold", "argv": arguments, **defaults}
    return Experiment([sources.digits], [models.mlp], **options)


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def results(folder: Path) -> list[dict[str, str]]:
    return [{k: v for k, v in row.items() if not k.startswith("time/")} for row in rows(folder)]


def model(folder: Path) -> torch.Tensor:
    state = torch.load(folder / "model.pt", weights_only=True)
    return torch.cat([t.flatten() for t in state.values()])


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "one"
    experiment(folder).run()
    return folder


# -------------------------------------------------------------------------------------- files


def test_metrics_csv_has_the_round_and_every_tag(finished: Path) -> None:
    table = rows(finished)
    assert next(iter(table[0])) == "round"
    assert set(table[0]) == {"round", *TAGS}
    assert [int(row["round"]) for row in table] == [1, 2, 3, 4]
    assert all(row[tag] for row in table for tag in TAGS)


def test_tensorboard_has_the_same_scalars_the_options_and_the_partition(finished: Path) -> None:
    events = EventAccumulator(str(finished))
    events.Reload()
    tags = {"test/accuracy": "Accuracy/test", "train/loss": "Loss/train", "client/drift": ""}
    for tag, shown in tags.items():
        table = [(int(row["round"]), float(row[tag])) for row in rows(finished)]
        scalars = events.Scalars(shown or tag)
        assert [(s.step, pytest.approx(s.value, rel=1e-6)) for s in scalars] == table
    assert "partition" in events.Tags()["images"]
    assert "_hparams_/session_start_info" in events._plugin_to_tag_to_content["hparams"]


def test_the_configuration_repeats_the_run(finished: Path, tmp_path: Path) -> None:
    config = yaml.safe_load((finished / "config.yaml").read_text())
    assert config["algorithm"].items() >= {"name": "scaffold", "server_lr": 1.0}.items()
    environment = yaml.safe_load((finished / "environment.yaml").read_text())
    assert {"torch", "git_commit", "command"} <= set(environment)
    again = tmp_path / "again"
    experiment(again, "--config", str(finished / "config.yaml"), algorithm="fedavg", rounds=1).run()
    assert results(again) == results(finished)
    assert torch.equal(model(again), model(finished))


def test_the_saved_partition_can_be_used_again(finished: Path, tmp_path: Path) -> None:
    (file,) = finished.glob("partition-*.npz")
    folder = tmp_path / "again"
    experiment(folder, "--partition", "saved", "--partition.file", str(file)).run()
    assert torch.equal(model(folder), model(finished))


def test_the_exported_model_has_the_last_accuracy_and_loss(tmp_path: Path) -> None:
    folder, (_, test) = tmp_path / "few", sources.digits()
    experiment(folder, "--evaluate-every", "3").run()
    assert [bool(row["test/accuracy"]) for row in rows(folder)] == [False, False, True, True]
    network = models.mlp(64, 10)
    network.load_state_dict(torch.load(folder / "model.pt", weights_only=True), strict=True)
    with torch.inference_mode():
        out = network(test.inputs(torch.arange(len(test))))
    accuracy = (out.argmax(1) == test.y).double().mean().item()
    assert float(rows(folder)[-1]["test/accuracy"]) == pytest.approx(accuracy)
    loss = torch.nn.functional.cross_entropy(out, test.y).item()
    assert float(rows(folder)[-1]["test/loss"]) == pytest.approx(loss, rel=1e-5)


def test_runs_without_a_named_folder_get_one_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that is refused leaves none."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="2"):
        experiment(tmp_path, argv=["--accelerator", "cpu", "--rounds", "0"]).run()
    for _ in range(2):
        experiment(tmp_path, argv=["--accelerator", "cpu"], rounds=1).run()
    assert [p.name for p in sorted(tmp_path.rglob("scaffold-*"))] == ["scaffold-0", "scaffold-1"]


def test_a_user_defined_callback_is_called(tmp_path: Path) -> None:
    seen = []

    class Rounds:
        def on_round_logged(self, federation: Federation, metrics: dict[str, float]) -> None:
            seen.append(federation.round)

    experiment(tmp_path / "own", callbacks=[Rounds()]).run()
    assert seen == [1, 2, 3, 4]


# -------------------------------------------------------------------------------- resumption


def interrupt_after(round: int) -> pytest.MonkeyPatch:
    """Ctrl-C in the round after this one."""

    def on_round_end(self: Any, federation: Any, metrics: dict[str, float]) -> None:
        metrics.update({"test/accuracy": 0.0, "test/loss": 0.0})
        if federation.round > round:
            raise KeyboardInterrupt

    patch = pytest.MonkeyPatch()
    patch.setattr("fl_lightning.callbacks.Evaluation.on_round_end", on_round_end)
    return patch


def test_resuming_equals_never_stopping(finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "stopped"
    experiment(folder, "--rounds", "2").run()
    experiment(folder, "--rounds", "4", "--resume").run()
    assert results(folder) == results(finished)
    assert torch.equal(model(folder), model(finished))


@pytest.mark.parametrize("round", [0, 3])
def test_an_interrupted_run_resumes_from_its_last_checkpoint(
    round: int, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its later rows are dropped; also before the first checkpoint after round 0."""
    folder = tmp_path / "killed"
    patch = interrupt_after(round)
    with pytest.raises(SystemExit, match="130"):
        experiment(folder, "--checkpoint-every", "2").run()
    patch.undo()
    if round:
        said = capsys.readouterr().out
        assert "round 2 is saved" in said
        assert f"--run-dir {folder} --resume" in said
    experiment(folder, "--resume", "--checkpoint-every", "2").run()
    assert [row["round"] for row in rows(folder)] == ["1", "2", "3", "4"]
    assert torch.equal(model(folder), model(finished))


def test_a_finished_run_says_so_when_it_is_resumed(
    finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    experiment(finished, "--resume").run()
    assert "nothing is left to train after 4 rounds: raise --rounds" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ("", ["holds a run already"]),
        ("--resume --rounds 3", ["round 4", "3"]),
        ("--resume --precision bf16-mixed", ["precision was 32-true and is now bf16-mixed"]),
        ("--resume --lr 0.3 --seed 7", ["lr was 0.1 and is now 0.3", "seed was 0 and is now 7"]),
    ],
)
def test_another_run_in_a_folder_is_refused(
    argv: str, words: list[str], finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (finished / "metrics.csv").read_text()
    said = sentence(capsys, lambda: experiment(finished, *argv.split()).run())
    assert all(word in said for word in words), said
    assert (finished / "metrics.csv").read_text() == before


def test_resuming_on_other_data_is_refused(
    finished: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    train, test = sources.digits()
    monkeypatch.setattr(Experiment, "load", lambda self: (replace(train, y=train.y.flip(0)), test))
    assert "data" in sentence(capsys, experiment(finished, "--resume").run)


# ------------------------------------------------------------------------------------ options


def test_stacked_gives_the_same_run(finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "stacked"
    experiment(folder, "--executor", "stacked", "--parallel-clients", "3").run()
    assert torch.allclose(model(folder), model(finished), atol=1e-5)


def test_bf16_trains_in_bf16_and_keeps_32_bits(finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "bf16"
    experiment(folder, "--precision", "bf16-mixed").run()
    assert model(folder).dtype == torch.float32
    assert 0 < (model(folder) - model(finished)).abs().max() < 0.1


@pytest.mark.parametrize("precision", ["64-true", "bf16-true"])
def test_a_precision_that_would_not_be_kept_is_refused(precision: Any) -> None:
    _, test = sources.digits()
    clients = ClientData(test, schemes.iid(test.y, 4, 0))
    fabric = Fabric(accelerator="cpu", precision=precision)
    with pytest.raises(ValueError, match="precision"):
        Federation(fabric, models.mlp(64, 10), Algorithm(), clients, rounds=1)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ("--partition.min-size 1000", ["min_size", "1000"]),
        ("--clients 100000", ["100000"]),
        ("--partition by_domain", ["no domains", "--partition"]),
        ("--lr 1e12", ["round 1", "no longer finite", "1e+12"]),
        ("--clip-norm -1", ["clip_norm is a positive number, not -1"]),
        ("--sampling bernoulli --participation 1e-9", ["empty"]),
        ("--accelerator abacus", ["abacus"]),
        ("--resume", ["nothing to resume"]),
        ("--partition saved", ["--partition.file", "needed"]),
        ("--partition saved --partition.file nowhere.npz", ["nowhere.npz"]),
    ],
)
def test_an_option_that_does_not_fit_is_one_sentence(
    argv: str, words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = sentence(capsys, lambda: experiment(tmp_path / "bad", *argv.split()).run())
    assert all(word in said for word in words), said


def test_a_default_of_an_unknown_option_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="widht"):
        experiment(tmp_path, widht=4)


def test_the_local_optimizer_of_an_algorithm_stays_and_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = tmp_path / "own.py"
    own.write_text(
        "from functools import partial\nfrom torch.optim import Adam\n"
        "from fl_lightning import Algorithm\n"
        "def own():\n    return Algorithm(local=partial(Adam, lr=0.003))\n"
    )
    experiment(tmp_path / "run", "--algorithm", f"{own}:own", "--rounds", "1").run()
    assert "a local Adam of learning rate 0.003" in capsys.readouterr().out
    assert [row["local/lr"] for row in rows(tmp_path / "run")] == ["0.003"]
    experiment(tmp_path / "plain", "--rounds", "1", "--lr", "0.05", "--momentum", "0.9").run()
    assert "a local" not in capsys.readouterr().out
