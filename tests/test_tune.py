"""`recipes/tune.py`: trials of a recipe, pruned and failed ones, and a study that is continued."""

import fcntl
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from locations import ROOT

optuna = pytest.importorskip("optuna")

TUNE = str(ROOT / "recipes/tune.py")
OWN_METRIC = """
from torchmetrics.classification import MulticlassAccuracy

def mine():
    return MulticlassAccuracy(10)
"""
SMALL = "--rounds", "2", "--local-steps", "1", "--clients", "5", "--accelerator", "cpu"


@pytest.fixture(autouse=True)
def tune(tmp_path, monkeypatch):
    def run(*argv):
        monkeypatch.setattr(sys, "argv", [TUNE, *argv])
        runpy.run_path(TUNE, run_name="__main__")

    monkeypatch.chdir(tmp_path)
    return run


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
def test_a_study_is_continued_and_names_its_best_values(tune, capsys):
    spaces = "--tune", "lr=0.01..1:log", "--tune", "local-steps=1..3", "--tune", "momentum=0,0.9"
    for trials in ("1", "3"):
        tune("digits", *spaces, *SMALL, "--trials", trials)
    said = capsys.readouterr().out.splitlines()
    begins = [line.partition(":")[0] for line in said[:1] + said[3:5]]
    assert begins == ["trial 0", "trial 1", "trial 2"]
    study = optuna.load_study(study_name="tune", storage="sqlite:///runs/tune-digits/study.db")
    assert {trial.state.name for trial in study.trials} == {"COMPLETE"}
    assert len({trial.params["lr"] for trial in study.trials}) == 3
    assert f"best val/accuracy {study.best_value:.4f}: --lr" in said[-2]
    for trial in study.trials:
        log = Path(f"runs/tune-digits/trial-{trial.number}.log").read_text()
        assert "held out for validation" in log
        assert [*trial.intermediate_values] == [1, 2]


@pytest.mark.parametrize(
    ("monitor", "direction"),
    [("val/mine", "MAXIMIZE"), ("clients/mine_worst10", "MAXIMIZE"), ("val/loss", "MINIMIZE")],
)
def test_a_metric_says_which_trial_is_the_best(monitor, direction):
    Path("own.py").write_text(OWN_METRIC)
    functions = runpy.run_path(TUNE)
    own = "--metric", "own.py:mine", "--monitor", monitor
    study = functions["begin"](*functions["parse"](["digits", "--tune", "lr=0.1..1", *own]))
    assert study.direction.name == direction


def test_no_two_starts_of_a_study_propose_the_same_values():
    functions = runpy.run_path(TUNE)
    command = functions["parse"](["digits", "--tune", "lr=0.1..1"])
    starts = [functions["begin"](*command) for _ in range(2)]
    assert len({study.ask().suggest_float("lr", 0.1, 1) for study in starts}) == 2


def test_values_are_shown_with_all_digits():
    assert runpy.run_path(TUNE)["_flags"]({"weight_decay": 0.0123456}) == "--weight-decay 0.0123456"


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
def test_a_trial_counts_unless_its_process_was_killed(tune):
    command = "digits", "--tune", "lr=0.1,0.2", *SMALL, "--trials"
    tune(*command, "1")
    study = optuna.load_study(study_name="tune", storage="sqlite:///runs/tune-digits/study.db")
    killed, at_work = study.ask(), study.ask()
    with Path("runs/tune-digits/trial-2.log").open("w") as log:
        fcntl.flock(log, fcntl.LOCK_EX)
        tune(*command, "3")
    states = [trial.state.name for trial in study.trials]
    assert (killed.number, at_work.number) == (1, 2)
    assert states == ["COMPLETE", "RUNNING", "RUNNING", "COMPLETE"]


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
def test_a_trial_that_diverges_does_not_end_the_study(tune, capsys):
    options = "--algorithm", "fedavg", "--clip-norm", "none", *SMALL, "--trials", "2"
    with pytest.raises(SystemExit):
        tune("digits", "--tune", "lr=1e30,2e30", *options)
    said = capsys.readouterr()
    assert said.out.count("fail") == 2
    assert "no trial" in said.err


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (["--monitor", "val/loss"], "monitor val/accuracy, not val/loss"),
        (["--rounds", "3"], "rounds 2, not 3"),
        (["--validation", "0.4"], "validation 0.1, not 0.4"),
        (["--algorithm", "fedavg"], "algorithm fedtoga, not fedavg"),
    ],
)
def test_a_study_is_not_continued_under_another_question(changed, words, tmp_path, sentence):
    functions, study = runpy.run_path(TUNE), optuna.create_study()

    def begin(*argv):
        o, others = functions["parse"](["digits", "--tune", "lr=0.1,0.2", *SMALL, *argv])
        functions["check_continued"](study, functions["asked"](o, others), tmp_path)

    begin("--validation", "0.1")
    begin("--validation", "0.1", "--checkpoint-every", "3")
    assert words in sentence(begin, "--validation", "0.1", *changed)


def test_values_of_each_kind_of_space():
    suggest = runpy.run_path(TUNE)["suggest"]
    trial = optuna.trial.FixedTrial({"lr": 0.1, "steps": 3, "kind": "b"})
    spaces = ("lr", "1e-3..1:log"), ("steps", "1..5"), ("kind", "a,b")
    assert [suggest(trial, *space) for space in spaces] == [0.1, 3, "b"]
    assert [d.log for d in trial.distributions.values() if hasattr(d, "log")] == [True, False]


def test_a_pruned_trial_ends_its_run():
    trial = SimpleNamespace(report=lambda *_: None, should_prune=lambda: True)
    report = runpy.run_path(TUNE)["Report"](trial, "val/loss")
    federation = SimpleNamespace(round=1, rounds=3, should_stop=False, last_only={"val/loss"})
    report.on_round_end(federation, {"test/loss": 1.0})
    assert not federation.should_stop
    report.on_round_end(federation, {"val/loss": 1.0})
    assert (federation.should_stop, report.pruned, report.score) == (True, True, 1.0)
    report.on_last_round_end(federation, {"val/loss": 0.5})
    assert report.score == 0.5, "an early stop adds the score of its last round here"


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ("digits", "--tune"),
        ("--tune lr=0..1", "name a recipe"),
        ("digits --tune lr", "'lr' is not NAME=SPACE"),
        ("digits --tune lr=0.1..many", "lr=0.1..many"),
        ("digits --tune lr=0.1..1:lgo", "lr=0.1..1:lgo"),
        ("digits --tune lrr=1,2", "--lrr"),
        ("digits --tune lr=0.1,0.2 --rounds 1 --monitor val/los", "'val/los'"),
    ],
)
def test_a_mistake_is_one_sentence(argv, words, tune, sentence):
    assert words in sentence(tune, *argv.split())
