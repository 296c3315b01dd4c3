"""Errors of machines and of user code: one sentence, printed by the ranks concerned."""

import re
from errno import ENOSPC, EPIPE
from functools import partial
from pathlib import Path
from typing import Any

import jobs
import pytest
import torch
from lightning.fabric.utilities.rank_zero import _get_rank, rank_zero_only
from problems import distances, federation, hard
from refusals import scaffold, sentence

from fl_lightning import Algorithm, Federation, ModelError, StackedExecutor, TermError, algorithms
from fl_lightning.cli import error_messages
from fl_lightning.cli.error_messages import exit_with_message
from fl_lightning.errors import UserError, first_sentence
from fl_lightning.federation.fine_tuning import FineTuning

FULL = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has ...")


class Cramped(StackedExecutor):
    """On a device with memory for `fits` clients; `before` results are ready before it is full."""

    fits, before = 2, 0

    def __call__(self, received: Any, visits: Any) -> Any:
        results = super().__call__(received, visits)
        for k, result in enumerate(results):
            if len(visits) > self.fits and k >= self.before:
                raise FULL
            yield result


@pytest.mark.parametrize("before", [0, 2])
@pytest.mark.parametrize("deterministic", [False, True])
def test_a_group_that_does_not_fit_is_tried_again_smaller(
    before, deterministic, monkeypatch, capsys
):
    """No client counts twice, in the sums or in the store."""
    monkeypatch.setattr(Cramped, "before", before)
    given: dict[str, Any] = {
        "algorithm": hard(algorithms.scaffold()),
        "deterministic": deterministic,
    }
    cramped, roomy = (
        federation(**given, executor=partial(kind, width=5)) for kind in (Cramped, StackedExecutor)
    )
    metrics = [(cramped.train_round(), roomy.train_round()) for _ in range(3)]
    assert max(distances(cramped, roomy).values()) < 1e-12
    for mine, theirs in metrics:
        assert mine["train/loss"] == pytest.approx(theirs["train/loss"], rel=1e-12)
    said = capsys.readouterr().out
    assert said.count("\n") == 1
    assert "round 1 of 3, rank 0: 5 clients" in said


def test_fine_tuning_has_no_larger_groups_than_training():
    models = []
    for kind in (Cramped, StackedExecutor):
        run = federation(algorithms.fedavg(), executor=partial(kind, width=5))
        run.train_round()
        models.append([w for w, _ in FineTuning(run).models(range(6), 1)])
    torch.testing.assert_close(*models, rtol=0, atol=1e-12)


def test_memory_for_not_even_one_client_names_batches_and_clients(monkeypatch):
    monkeypatch.setattr(Cramped, "fits", 0)
    run = federation(Algorithm(), executor=partial(Cramped, width=5))
    with pytest.raises(ModelError, match=r"batches of 5 .* --batch-size") as error:
        run.train_round()
    assert error.value.__notes__ == ["in round 1 of 3, clients 0, 2, 1, 5, 4"]


MISTAKEN = """
import functools
def number(classes):
    return 5
def data():
    return 1, 2
def parts(labels): ...
def pair(classes, name="mlp"): ...
def three(): return 3
def worded(mu: float = "a"): ...
def strange(mu: "flot" = 0.1): ...
fast = functools.partial(print)
"""


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        ("--model=own.py:number", r"own.py:number .* torch.nn.Module, .* 5$"),
        ("--data=own.py:data", r"DeviceDataset, but returned \(1, 2\)$"),
        ("--partition=own.py:parts", r"'labels' .* seed, y, annotate"),
        ("--algorithm=own.py:parts", r"'labels' that nothing fills in: annotate"),
        ("--algorithm=own.py:three", r"own.py:three must return an Algorithm, but returned 3$"),
        ("--server-optimizer=own.py:three", r"must return a Modifier, but returned 3$"),
        ("--algorithm=own.py:worded", r"default of algorithm\.mu: 'a' is not a number"),
        ("--algorithm=own.py:strange", r"annotation of strange .* 'flot' is not defined"),
        ("--algorithm=own.py:fast", r"no function 'fast'"),
        ("--model=own.py:pair", r"own.py:pair has a parameter 'name'.* rename it$"),
        ("--model=own.py:nomber", r"no function 'nomber'; did you mean number\?$"),
        ("--model=own.py", r"name its function; there are: .*number"),
    ],
)
def test_a_function_that_does_not_fit_is_named(flag, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text(MISTAKEN)
    assert re.search(said, sentence(capsys, scaffold, tmp_path / "run", flag))


class Broken:
    def on_round_logged(self, federation: Federation, metrics: dict[str, float]) -> None:
        if federation.round == 3:
            metrics["of my own"]


def test_a_callback_that_raises_keeps_its_traceback_and_the_run_can_be_resumed(
    tmp_path, uninterrupted
):
    with pytest.raises(KeyError, match="of my own") as error:
        scaffold(tmp_path / "run", callbacks=[Broken()])
    assert error.value.__notes__ == ["after round 3 of 7"]
    scaffold(tmp_path / "run", "--resume")
    assert jobs.results(tmp_path / "run") == uninterrupted


OWN_TERM = """
from fl_lightning import Algorithm, Term


class Mine(Term):
    def {hook}:
        return {{}}["nothing"]


def mine() -> Algorithm:
    return Algorithm(Mine())
"""


@pytest.mark.parametrize("executor", ["sequential", "stacked"])
@pytest.mark.parametrize(
    "hook", ["start(self, w, v)", "gradient(self, oracle, w, v)", "update(self, delta, mean, v)"]
)
def test_a_term_that_raises_is_named(hook, executor, tmp_path):
    own = tmp_path / "own.py"
    own.write_text(OWN_TERM.format(hook=hook))
    argv = "--algorithm", f"{own}:mine", "--executor", executor
    with pytest.raises(KeyError, match="nothing") as error:
        scaffold(tmp_path / "run", *argv)
    assert f"raised in Mine.{hook.partition('(')[0]}" in error.value.__notes__


def test_a_variable_asks_for_the_traceback(tmp_path, monkeypatch):
    monkeypatch.setenv("FL_LIGHTNING_TRACEBACK", "1")
    with pytest.raises(UserError):
        scaffold(tmp_path / "run", "--partition", "from_file", "--partition.file", "nowhere")


LAUNCHERS: dict[str, list[dict[str, str]]] = {
    "torchrun": [{"RANK": str(i), "LOCAL_RANK": str(i)} for i in range(3)],
    "torchrun on another machine": [
        {"RANK": str(3 + i), "LOCAL_RANK": str(i)} for i in range(3)
    ],  # it has a console of its own
    "SLURM": [{"SLURM_PROCID": str(i), "SLURM_LOCALID": str(i % 2)} for i in range(3)],
    "Lightning": [{}, {"LOCAL_RANK": "1"}],
}


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_of_several_ranks_the_first_prints_before_there_is_a_fabric(launcher, capsys, monkeypatch):
    for variables in LAUNCHERS[launcher]:
        for name in ("RANK", "LOCAL_RANK", "SLURM_PROCID"):
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(rank_zero_only, "rank", _get_rank() or 0)  # as Lightning's import does
        with pytest.raises(SystemExit):
            error_messages.exit_with_error("it does not fit")
    assert capsys.readouterr().err == "error: it does not fit\n"


@pytest.mark.parametrize(
    ("error", "prints"), [(OSError(ENOSPC, "no space"), True), (TermError("No"), False)]
)
def test_another_rank_prints_what_happened_to_it_alone(error, prints, capsys, monkeypatch):
    monkeypatch.setattr(error_messages, "is_first_rank", lambda: False)
    with pytest.raises(SystemExit), exit_with_message():
        raise error
    assert ("error: " in capsys.readouterr().err) == prints


def test_a_reader_that_has_ended_is_no_mistake_of_the_user():
    with pytest.raises(BrokenPipeError), exit_with_message():
        raise BrokenPipeError(EPIPE, "nobody reads")


@pytest.mark.parametrize(
    ("message", "first"),
    [
        ("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has", "CUDA out of memory"),
        ("size 2.5 does not fit\nTraceback. Of PyTorch", "size 2.5 does not fit"),
        ("\n  choose another model, e.g. lenet.\n", "choose another model, e.g. lenet"),
        ("", "RuntimeError"),
    ],
)
def test_the_first_sentence_of_an_error(message, first):
    assert first_sentence(RuntimeError(message)) == first
