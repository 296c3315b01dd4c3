"""Curves as options: on the command line, in YAML, in the run's folder, in tables."""

from pathlib import Path

import jobs
import pytest
from refusals import Stops, experiment, refused

import fl_lightning as fl
from fl_lightning.cli.parser import unused_option_notes
from fl_lightning.core.curves import parse
from fl_lightning.lab.report import load_runs
from fl_lightning.runs.config import Config
from fl_lightning.training.arguments import read_algorithm, read_options

BETA, LR = "cosine(0.8, 0.1)", "cosine(0.1, 0)"
TOGA = "--algorithm", "fedtoga", "--algorithm.beta", "cosine(0.8,0.1)", "--lr", LR


def local_rates(folder: Path) -> list[float]:
    return [*load_runs([folder])[0].metrics["local/lr"]]


def test_the_run_keeps_the_text_and_resumes_with_it(tmp_path):
    """One that was interrupted equals one that never was."""
    for folder in ("whole", "stopped"):
        run = experiment(tmp_path / folder, *TOGA, "--rounds", "4", "--checkpoint-every", "1")
        if folder == "stopped":
            run.callbacks = [Stops(3)]
            with pytest.raises(SystemExit):
                run.run()
            run = experiment(tmp_path / folder, "--resume")
        run.run()
    config = Config.read(tmp_path / "stopped")
    assert (config["algorithm.beta"], config["lr"], config["lr_decay"]) == (BETA, LR, 1.0)
    assert jobs.results(tmp_path / "stopped") == jobs.results(tmp_path / "whole")
    assert local_rates(tmp_path / "stopped") == pytest.approx(
        [parse(LR)(t, 4) for t in range(4)], rel=1e-6
    )


def test_a_decay_is_a_spelling_of_an_exponential(tmp_path):
    experiment(tmp_path / "a", "--rounds", "3", "--lr", "0.3", "--lr-decay", "0.9").run()
    experiment(tmp_path / "b", "--rounds", "3", "--lr", "exponential(0.3, 0.9)").run()
    assert jobs.results(tmp_path / "a") == jobs.results(tmp_path / "b")


def test_a_run_with_a_curve_over_all_rounds_keeps_their_number(tmp_path, sentence):
    experiment(tmp_path, "--lr", "linear(0.1, 0.05, 2)").run()
    experiment(tmp_path, "--resume", "--rounds", "2").run()
    experiment(tmp_path / "other", "--server-lr", LR).run()
    longer = experiment(tmp_path / "other", "--resume", "--rounds", "2").run
    assert "rounds" in sentence(longer)


def test_a_file_of_options_may_hold_curves(tmp_path):
    (tmp_path / "file.yaml").write_text(
        f"algorithm: {{name: fedtoga, beta: '{BETA}', rho: 0.2}}\nlr: {LR}\nperturb: none\n"
    )
    run = experiment(tmp_path / "run", "--config", str(tmp_path / "file.yaml"))
    assert run.options.lr == parse(LR)
    assert run.chosen["algorithm"].options["beta"] == parse(BETA)
    assert run.config["algorithm.beta"] == BETA


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--lr", "linear(0.1, -0.1)", "--rounds", "9"], ["round 9", "linear(0.1, -0.1)"]),
        (["--lr", "linear(0, 0.1)"], ["lr is a positive number"]),
        (["--server-lr", "linear(1, -1)", "--rounds", "9"], ["round 9", "server_lr linear(1, -1)"]),
        (["--lr", "cosin(0.1, 0)"], ["--lr", "cosine(0.8, 0.1)"]),
        (["--participation", "linear(0.1, 1)"], ["--participation", "not a number"]),
        (["--partition.alpha", "linear(0.1, 1)"], ["--partition.alpha", "not a number"]),
        (["--lr", LR, "--finetune-epochs", "1"], ["finetune_lr", LR]),
    ],
)
def test_curves_that_do_not_fit_are_refused(flags, said, tmp_path, capsys):
    sentence = refused(capsys, tmp_path / "run", *flags)
    assert all(part in sentence for part in said)


def test_a_decay_beside_a_curve_is_noted(tmp_path):
    run = experiment(tmp_path, "--lr", LR, "--lr-decay", "0.9")
    (note,) = unused_option_notes({"lr", "lr_decay"}, run.options, run.chosen)
    assert "--lr-decay has no effect" in note


def test_an_algorithm_with_learning_rates_of_its_own_refuses_others(tmp_path, capsys):
    (tmp_path / "own.py").write_text(
        "from fl_lightning import Algorithm, cosine\n\n\n"
        "def own(rho: float = 0.1) -> Algorithm:\n    return Algorithm(lr=cosine(0.2, 0.1))\n\n\n"
        "def twice(rho: float = 0.1) -> Algorithm:\n    return Algorithm(lr=2 * rho)\n"
    )
    own = "--algorithm", f"{tmp_path}/own.py:own"
    run = experiment(tmp_path / "run", *own)
    assert "lr" not in run.config
    assert run.algorithm().lr == parse("cosine(0.2, 0.1)")
    assert "does not use --lr" in refused(capsys, tmp_path / "run", *own, "--lr", "0.1")
    twice = "--algorithm", f"{tmp_path}/own.py:twice", "--algorithm.rho", LR
    assert "only a term" in refused(capsys, tmp_path / "run", *twice)


def test_python_takes_curves_and_their_texts(tmp_path):
    chosen = read_algorithm({"name": "fedtoga", "beta": BETA, "rho": fl.linear(0.1, 0.2)})
    made = chosen["algorithm"]()
    assert [*made.curves.values()] == [fl.linear(0.1, 0.2), parse(BETA)]
    for given in (LR, parse(LR)):
        assert read_options({"lr": given})[0].lr == parse(LR)
    with pytest.raises(fl.UserError, match="lr_decay"):
        read_options({"lr": LR, "lr_decay": 0.9})
