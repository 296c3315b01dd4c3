"""A run, its folder, its files: what a recipe's user finds afterwards."""

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
import yaml
from lightning.fabric import Fabric
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from fl_lightning import Algorithm, ClientData, Federation, models
from fl_lightning.data import schemes, sources
from fl_lightning.experiment import Experiment

TAGS = [
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
]


def experiment(folder: Path, *argv: str, **defaults: Any) -> Experiment:
    options = {
        "clients": 8,
        "participation": 0.5,
        "rounds": 4,
        "batch_size": 32,
        "algorithm": "scaffold",
        **defaults,
    }
    arguments = ["--run-dir", str(folder), "--accelerator", "cpu", *argv]
    return Experiment([sources.digits], [models.mlp], argv=arguments, **options)


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


def test_metrics_csv_has_the_round_and_every_tag(finished: Path) -> None:
    table = rows(finished)
    assert next(iter(table[0])) == "round"
    assert set(table[0]) == {"round", *TAGS}
    assert [int(row["round"]) for row in table] == [1, 2, 3, 4]
    assert all(row[tag] for row in table for tag in TAGS)


def test_tensorboard_has_the_scalars_hyper_parameters_and_the_partition(finished: Path) -> None:
    events = EventAccumulator(str(finished))
    events.Reload()
    for tag in TAGS:
        if tag.startswith(("client/", "server/", "time/")):
            table = [(int(row["round"]), float(row[tag])) for row in rows(finished)]
            shown = [(s.step, pytest.approx(s.value, rel=1e-6)) for s in events.Scalars(tag)]
            assert shown == table
    assert "partition" in events.Tags()["images"]
    assert "_hparams_/session_start_info" in events._plugin_to_tag_to_content["hparams"]


def test_config_and_environment_tell_how_to_repeat_the_run(finished: Path, tmp_path: Path) -> None:
    config = yaml.safe_load((finished / "config.yaml").read_text())
    assert config["algorithm"].items() >= {"name": "scaffold", "server_lr": 1.0}.items()
    assert {"torch", "git_commit", "command"} <= set(
        yaml.safe_load((finished / "environment.yaml").read_text())
    )
    again = tmp_path / "again"
    experiment(again, "--config", str(finished / "config.yaml"), algorithm="fedavg", rounds=1).run()
    assert results(again) == results(finished)
    assert torch.equal(model(again), model(finished))


def test_resume_equals_never_stopping(finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "stopped"
    experiment(folder, "--rounds", "2").run()
    experiment(folder, "--rounds", "4", "--resume").run()
    assert results(folder) == results(finished)
    assert torch.equal(model(folder), model(finished))


def test_resume_drops_what_came_after_the_checkpoint(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """After Ctrl-C, which ends with one sentence."""
    folder = tmp_path / "killed"
    killed = experiment(folder, "--checkpoint-every", "2", "--rounds", "4")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fl_lightning.callbacks.Evaluation.on_round_end", _interrupt_after(3))
        with pytest.raises(SystemExit, match="130"):
            killed.run()
    told = f"interrupted: round 2 is saved, continue with --run-dir {folder} --resume\n"
    assert told in capsys.readouterr().out
    experiment(folder, "--resume", "--rounds", "4").run()
    assert [row["round"] for row in rows(folder)] == ["1", "2", "3", "4"]
    assert torch.equal(model(folder), model(finished))


def _interrupt_after(round: int) -> Any:
    def on_round_end(self: Any, federation: Any, metrics: dict[str, float]) -> None:
        metrics.update({"test/accuracy": 0.0, "test/loss": 0.0})
        if federation.round > round:
            raise KeyboardInterrupt

    return on_round_end


def test_the_partition_is_kept_and_can_be_taken_again(finished: Path, tmp_path: Path) -> None:
    (file,) = finished.glob("partition-*.npz")
    folder = tmp_path / "again"
    experiment(folder, "--partition", "saved", "--partition.file", str(file)).run()
    assert torch.equal(model(folder), model(finished))


def test_stacked_gives_the_same_run(finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "stacked"
    experiment(folder, "--executor", "stacked", "--parallel-clients", "3").run()
    assert torch.allclose(model(folder), model(finished), atol=1e-5)


def test_the_exported_model_loads_into_the_plain_network(finished: Path) -> None:
    models.mlp(64, 10).load_state_dict(
        torch.load(finished / "model.pt", weights_only=True), strict=True
    )


def test_evaluation_counts_every_sample_once(tmp_path: Path) -> None:
    folder = tmp_path / "few"
    experiment(folder, "--evaluate-every", "3").run()
    assert [bool(row["test/accuracy"]) for row in rows(folder)] == [False, False, True, True]
    _, test = sources.digits()
    network = models.mlp(64, 10)
    network.load_state_dict(torch.load(folder / "model.pt", weights_only=True))
    with torch.inference_mode():
        out = network(test.inputs(torch.arange(len(test))))
    assert float(rows(folder)[-1]["test/accuracy"]) == pytest.approx(
        float((out.argmax(1) == test.y).double().mean())
    )
    loss = torch.nn.functional.cross_entropy(out, test.y)
    assert float(rows(folder)[-1]["test/loss"]) == pytest.approx(float(loss), rel=1e-5)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--participation", "1.5"], ["participation", "1.5"]),
        (["--rounds", "0"], ["rounds is a whole number of at least 1, not 0"]),
        (["--batch-size", "0"], ["batch"]),
        (["--local-epochs", "-1"], ["epochs"]),
        (["--partition.min-size", "1000"], ["min_size", "1000"]),
        (["--clients", "100000"], ["100000"]),
        (["--partition", "by_domain"], ["no domains", "--partition"]),
        (["--lr", "1e12"], ["round 1", "no longer finite", "1e+12"]),
        (["--lr", "-1"], ["lr is a positive number"]),
        (["--lr-decay", "0"], ["lr_decay is a positive number"]),
        (["--momentum", "1"], ["momentum"]),
        (["--clip-norm", "-1"], ["clip is a positive number, not -1"]),
        (["--algorithm", "fedsam", "--algorithm.rho", "-5"], ["rho", "-5"]),
        (["--algorithm.server-lr", "-1"], ["learning rate", "-1"]),
        (["--model.hidden", "-1"], ["hidden layers"]),
        (["--sampling", "bernoulli", "--participation", "1e-9"], ["empty"]),
        (["--accelerator", "abacus"], ["abacus"]),
        (["--executor", "stacked", "--parallel-clients", "0"], ["width"]),
        (["--evaluate-every", "0"], ["evaluate_every", "at least 1"]),
        (["--resume"], ["nothing to resume"]),
        (["--partition", "saved"], ["--partition.file", "needed"]),
        (["--partition", "saved", "--partition.file", "nowhere.npz"], ["nowhere.npz"]),
    ],
)
def test_bad_input_gets_one_sentence(
    argv: list[str], words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        experiment(tmp_path / "bad", *argv).run()
    assert stop.value.code == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    for word in words:
        assert word in said


def test_a_folder_with_a_run_is_not_overwritten(
    finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (finished / "metrics.csv").read_text()
    with pytest.raises(SystemExit):
        experiment(finished).run()
    assert "holds a run already" in capsys.readouterr().err
    assert (finished / "metrics.csv").read_text() == before


def test_a_mistake_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        Experiment(
            [sources.digits], [models.mlp], argv=["--accelerator", "cpu", "--rounds", "0"]
        ).run()
    assert not list(tmp_path.rglob("fedavg-*"))


def test_runs_without_a_named_folder_get_one_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        Experiment(
            [sources.digits], [models.mlp], clients=8, rounds=1, argv=["--accelerator", "cpu"]
        ).run()
    assert [p.name for p in sorted(tmp_path.rglob("fedavg-*"))] == ["fedavg-0", "fedavg-1"]


def test_a_run_that_died_before_its_first_checkpoint_can_be_resumed(
    finished: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "early"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fl_lightning.callbacks.Evaluation.on_round_end", _interrupt_after(0))
        with pytest.raises(SystemExit, match="130"):
            experiment(folder).run()
    experiment(folder, "--resume").run()
    assert torch.equal(model(folder), model(finished))


def test_resuming_on_other_data_or_with_fewer_rounds_is_refused(
    finished: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SystemExit):
        experiment(finished, "--resume", "--rounds", "3").run()
    assert "is of round 4, this run ends with 3" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        experiment(finished, "--resume", "--precision", "bf16-mixed").run()
    assert "precision was 32-true and is now bf16-mixed" in capsys.readouterr().err
    train, test = sources.digits()
    monkeypatch.setattr(Experiment, "load", lambda self: (replace(train, y=train.y.flip(0)), test))
    with pytest.raises(SystemExit):
        experiment(finished, "--resume").run()
    assert "the same data" in capsys.readouterr().err


def test_an_own_callback_is_called(tmp_path: Path) -> None:
    class Rounds:
        seen: ClassVar[list[int]] = []

        def on_round_logged(self, federation: Federation, metrics: dict[str, float]) -> None:
            self.activations.append(federation.round)

    experiment(tmp_path / "own", callbacks=[Rounds()]).run()
    assert Rounds.activations == [1, 2, 3, 4]


def test_bf16_trains_in_bf16_and_keeps_32_bits(finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "bf16"
    experiment(folder, "--precision", "bf16-mixed").run()
    assert model(folder).dtype == torch.float32
    assert 0 < (model(folder) - model(finished)).abs().max() < 0.1


def test_a_precision_that_would_not_be_kept_is_refused() -> None:
    _, test = sources.digits()
    clients = ClientData(test, schemes.iid(test.y, 4, 0))
    for precision in ("64-true", "bf16-true"):
        with pytest.raises(ValueError, match="precision"):
            Federation(
                Fabric(accelerator="cpu", precision=precision),
                models.mlp(64, 10),
                Algorithm(),
                clients,
                rounds=1,
            )


def test_resuming_with_other_options_is_refused(
    finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        experiment(finished, "--resume", "--lr", "0.3", "--seed", "7").run()
    said = capsys.readouterr().err
    assert "lr was 0.1 and is now 0.3" in said
    assert "seed was 0 and is now 7" in said


def test_a_local_optimizer_that_an_algorithm_brings_stays_and_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = tmp_path / "own.py"
    own.write_text(
        "from functools import partial\nfrom torch.optim import Adam\nfrom fl_lightning import Algorithm\n"
        "def own():\n    return Algorithm(local=partial(Adam, lr=0.003))\n"
    )
    experiment(tmp_path / "run", "--algorithm", f"{own}:own", "--rounds", "1").run()
    told = "brings a local Adam of learning rate 0.003: --lr, --momentum and --weight-decay do not count"
    assert told in capsys.readouterr().out
    assert [row["local/lr"] for row in rows(tmp_path / "run")] == ["0.003"]


def test_an_ordinary_run_does_not_speak_of_its_optimizer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    experiment(tmp_path / "run", "--rounds", "1", "--lr", "0.05", "--momentum", "0.9").run()
    assert "brings" not in capsys.readouterr().out


@pytest.mark.parametrize(("weighting", "twice"), [("by_size", True), ("uniform", False)])
def test_sizes_that_count_twice_are_told(
    weighting: str, twice: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = "--sampling", "weighted", "--algorithm", "fedavg", "--algorithm.weighting", weighting
    experiment(tmp_path / "run", "--rounds", "1", *options).run()
    assert (
        "fedavg weighs clients by size, as their draw does: it counts twice"
        in capsys.readouterr().out
    ) == twice


def test_a_finished_run_says_so_when_it_is_resumed(
    finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    experiment(finished, "--resume").run()
    assert (
        "nothing is left to train: the run has had its 4 rounds; add --rounds with more"
        in capsys.readouterr().out
    )


def test_epochs_that_would_not_count_beside_steps_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        experiment(tmp_path / "run", "--local-steps", "5", "--local-epochs", "3")
    assert (
        "--local-steps takes the place of --local-epochs: give one of them"
        in capsys.readouterr().err
    )
    (tmp_path / "steps.yaml").write_text("local_steps: 5\n")
    own = experiment(
        tmp_path / "run",
        "--config",
        str(tmp_path / "steps.yaml"),
        "--local-steps",
        "none",
        "--local-epochs=3",
    )
    assert (own.options.local_steps, own.options.local_epochs) == (None, 3.0)
