"""Errors of machines and of user code: one sentence, printed by the ranks concerned."""

import re
from functools import partial
from pathlib import Path
from typing import Any

import jobs
import numpy as np
import pytest
import torch
from lightning.fabric.utilities.rank_zero import _get_rank, rank_zero_only
from problems import distances, federation, hard
from refusals import scaffold, sentence

from fl_lightning import Algorithm, Federation, ModelError, StackedExecutor, TermError, algorithms
from fl_lightning.cli import error_messages
from fl_lightning.cli.error_messages import exit_with_message
from fl_lightning.data import sources
from fl_lightning.errors import first_sentence
from fl_lightning.federation.fine_tuning import FineTuning
from fl_lightning.terms import drift

FULL = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has ...")


def fails(*_: Any) -> None:
    raise FULL


class Cramped(StackedExecutor):
    """On a device with memory for `fits` clients; `before` outcomes are ready before it is full."""

    fits, before = 2, 0

    def __call__(self, received: Any, visits: Any) -> Any:
        outcomes = super().__call__(received, visits)
        for k, outcome in enumerate(outcomes):
            if len(visits) > self.fits and k >= self.before:
                raise FULL
            yield outcome


@pytest.mark.parametrize("before", [0, 2])
@pytest.mark.parametrize("deterministic", [False, True])
def test_a_group_that_does_not_fit_is_tried_again_smaller(
    before, deterministic, monkeypatch, capsys
):
    """No client counts twice, in the sums or in the store."""
    monkeypatch.setattr(Cramped, "before", before)
    cramped, roomy = (
        federation(
            hard(algorithms.scaffold()),
            executor=partial(kind, width=5),
            deterministic=deterministic,
        )
        for kind in (Cramped, StackedExecutor)
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


def test_a_data_set_too_large_for_the_device_is_named(monkeypatch):
    train, _ = sources.digits()
    monkeypatch.setattr(torch.Tensor, "to", fails)
    with pytest.raises(ValueError, match=r"1,437 samples of shape 1x8x8 .* cuda"):
        train.to("cuda")


def fills_tensors(*_: Any) -> None:
    torch.empty(2**50)


def fills_arrays(*_: Any) -> None:
    np.empty(2**50)


def fills_lists(*_: Any) -> None:
    [0] * 2**50


@pytest.mark.parametrize(
    ("fill", "reason"),
    [
        (fails, "CUDA out of memory"),
        (fills_tensors, r"can't allocate memory: .* 4503599627370496 bytes"),
        (fills_arrays, "Unable to allocate 8.00 PiB"),
        (fills_lists, "MemoryError"),
    ],
)
@pytest.mark.parametrize("place", ["callbacks.Evaluation.on_round_end", "experiment.build_data"])
def test_memory_that_runs_out_elsewhere_is_one_sentence(
    place, fill, reason, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(f"fl_lightning.{place}", fill)
    said = sentence(capsys, scaffold, tmp_path / "run")
    assert re.search(rf"not enough memory \({reason}.*\): lower", said)


MISTAKEN = """
from torch import nn
from fl_lightning import Algorithm
def net(classes):
    raise RuntimeError("boom")
def number(classes):
    return 5
def data():
    return 1, 2
def broken():
    return Algorithm(1 / 0)
def partition(y, clients, seed):
    return y[clients * 10**6]
"""


@pytest.mark.parametrize(
    ("content", "flag", "said"),
    [
        (MISTAKEN, "--model=own.py:net", r"RuntimeError: boom \(own.py, line 5; FL_"),
        (MISTAKEN, "--model=own.py:number", r"own.py:number .* torch.nn.Module, .* 5$"),
        (MISTAKEN, "--data=own.py:data", r"DeviceDataset, but returned \(1, 2\)$"),
        (MISTAKEN, "--algorithm=own.py:broken", r"ZeroDivisionError: .* \(own.py, line 11; FL_"),
        (MISTAKEN, "--partition=own.py:partition", r"IndexError: .* \(own.py, line 13; FL_"),
        ("def net(classes)", "--model=own.py:net", r"SyntaxError: .*own.py, line 1"),
        ("import nowhere", "--model=own.py:net", r"ModuleNotFoundError: .* \(own.py, line 1"),
        ("def parts(labels): ...", "--partition=own.py:parts", r"'labels' .* seed, y, annotate"),
        ("def net(n): ...", "--algorithm=own.py:net", r"'n' that nothing fills in: annotate"),
        ("def nat(): ...", "--model=own.py:net", r"no function 'net'; did you mean nat\?$"),
    ],
)
def test_a_mistake_in_a_user_defined_file_is_named_with_its_line(
    content, flag, said, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text(content)
    assert re.search(said, sentence(capsys, scaffold, tmp_path / "run", flag))


class Broken:
    def on_round_logged(self, federation: Federation, metrics: dict[str, float]) -> None:
        if federation.round == 3:
            metrics["of my own"]


def test_a_callback_that_raises_is_named_and_the_run_can_be_resumed(
    tmp_path, uninterrupted, capsys
):
    said = sentence(capsys, scaffold, tmp_path / "run", callbacks=[Broken()])
    assert f"KeyError: 'of my own' ({Path(__file__).name}, line " in said
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
def test_a_term_that_raises_is_named(hook, executor, tmp_path, capsys):
    own = tmp_path / "own.py"
    own.write_text(OWN_TERM.format(hook=hook))
    argv = "--algorithm", f"{own}:mine", "--executor", executor
    said = sentence(capsys, scaffold, tmp_path / "run", *argv)
    assert "KeyError: 'nothing' (own.py, line 7; FL_LIGHTNING_TRACEBACK=1" in said
    assert f"Mine.{hook.partition('(')[0]}" in said


def test_a_variable_asks_for_the_traceback(tmp_path, monkeypatch):
    monkeypatch.setenv("FL_LIGHTNING_TRACEBACK", "1")
    with pytest.raises(KeyError):
        scaffold(tmp_path / "run", callbacks=[Broken()])


def test_a_mistake_of_this_package_keeps_its_traceback(tmp_path, monkeypatch):
    mistake = "def gradient(*_):\n    raise KeyError('a mistake of this package')"
    exec(compile(mistake, drift.__file__, "exec"), names := dict[str, Any]())
    monkeypatch.setattr(drift.ControlVariate, "gradient", names["gradient"])
    with pytest.raises(KeyError):
        scaffold(tmp_path / "run")


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
    ("error", "prints"), [(OSError("no such disk"), True), (FULL, True), (TermError("No"), False)]
)
def test_another_rank_prints_what_happened_to_it_alone(error, prints, capsys, monkeypatch):
    monkeypatch.setattr(error_messages, "is_first_rank", lambda: False)
    with pytest.raises(SystemExit), exit_with_message():
        raise error
    assert ("error: " in capsys.readouterr().err) == prints


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
