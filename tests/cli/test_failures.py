"""Memory that is too small, code of the user's that fails, and what a program's end and its model are to others."""

import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import runs
import torch
from locations import ROOT
from problems import distances, federation, hard
from refusals import scaffold, sentence

from fl_lightning import Algorithm, Federation, ModelError, StackedExecutor, algorithms
from fl_lightning.data import sources
from fl_lightning.experiment import Experiment
from fl_lightning.federation.fine_tuning import FineTuning
from fl_lightning.models import mlp
from fl_lightning.terms import drift

# --------------------------------------------------------------------------------------------------------------- memory


class Cramped(StackedExecutor):
    """On a device with memory for so many clients at once; the outcomes of a few get through before it is full."""

    fits, before = 2, 0

    def __call__(self, algorithm: Any, common: Any, visits: Any, *rest: Any) -> Any:
        outcomes = super().__call__(algorithm, common, visits, *rest)
        for k, outcome in enumerate(outcomes):
            if len(visits) > self.fits and k >= self.before:
                raise torch.OutOfMemoryError(
                    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total ..."
                )
            yield outcome


@pytest.mark.parametrize("before", [0, 2])
@pytest.mark.parametrize("deterministic", [False, True])
def test_too_many_at_once_are_tried_again_with_fewer(
    before: int,
    deterministic: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """No client counts twice, in the sums or in the store, also where some had been counted when memory ran out."""
    monkeypatch.setattr(Cramped, "before", before)
    algorithm = hard(algorithms.scaffold())
    cramped = federation(algorithm, executor=partial(Cramped, width=5), deterministic=deterministic)
    roomy = federation(
        algorithm, executor=partial(StackedExecutor, width=5), deterministic=deterministic
    )
    metrics = [(cramped.train_round(), roomy.train_round()) for _ in range(3)]
    assert max(distances(cramped, roomy).values()) < 1e-12
    for mine, theirs in metrics:
        assert mine["train/loss"] == pytest.approx(theirs["train/loss"], rel=1e-12)
    said = capsys.readouterr().out
    assert said.count("\n") == 1
    assert (
        "round 1 of 3, rank 0: 5 clients at once do not fit into the memory of cpu: going on with 2 at once"
        in said
    )


def test_no_more_models_are_personalised_at_once_than_were_trained(
    capsys: pytest.CaptureFixture[str],
) -> None:
    models = []
    for kind in (Cramped, StackedExecutor):
        run = federation(algorithms.fedavg(), executor=partial(kind, width=5))
        run.train_round()
        models.append([w for w, _ in FineTuning(run).models(range(6), 1)])
    torch.testing.assert_close(*models, rtol=0, atol=1e-12)


def test_memory_for_not_even_one_client_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cramped, "fits", 0)
    run = federation(Algorithm(), executor=partial(Cramped, width=5))
    with pytest.raises(
        ModelError,
        match=r"with batches of 5 samples of shape 6, does not fit .* lower --batch-size",
    ) as error:
        run.train_round()
    assert error.value.__notes__ == ["in round 1 of 3, clients 0, 2, 1, 5, 4"]


def test_a_data_set_too_large_for_the_device_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 88.00 GiB.")

    train, _ = sources.digits()
    monkeypatch.setattr(torch.Tensor, "to", fails)
    with pytest.raises(
        ValueError,
        match=r"1,437 samples of shape 1x8x8 take 0.0 GB, which the memory of cuda does not",
    ):
        train.to("cuda")


def test_memory_that_runs_out_elsewhere_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    monkeypatch.setattr("fl_lightning.callbacks.Evaluation.on_round_end", fails)
    assert "the memory of the device does not suffice (CUDA out of memory)" in sentence(
        capsys, scaffold, tmp_path / "run"
    )


# --------------------------------------------------------------------------------------------------- code of the user's


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
    ("flag", "told"),
    [
        (
            "--model=own.py:net",
            r"error: RuntimeError: boom \(own.py, line 5; FL_LIGHTNING_TRACEBACK=1 shows",
        ),
        (
            "--model=own.py:number",
            r"error: own.py:number must return a torch.nn.Module, but returned 5$",
        ),
        (
            "--data=own.py:data",
            r"must return a training and a test DeviceDataset, but returned \(1, 2\)$",
        ),
        (
            "--algorithm=own.py:broken",
            r"error: ZeroDivisionError: division by zero \(own.py, line 11; FL",
        ),
        ("--partition=own.py:partition", r"error: IndexError: index .* \(own.py, line 13; FL"),
    ],
)
def test_a_mistake_in_a_file_of_the_users_is_told_with_its_line(
    flag: str,
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text(MISTAKEN)
    assert re.search(told, sentence(capsys, scaffold, tmp_path / "run", flag))


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (
            "def net(classes)\n    ...",
            r"own.py ends with SyntaxError: expected ':' \(own.py, line 1\) \(FL_",
        ),
        (
            "import nowhere",
            r"own.py ends with ModuleNotFoundError: No module named 'nowhere' \(FL_",
        ),
        (
            "from torch import nn\ndef nat(): ...",
            r"own.py has no function 'net'; did you mean nat\?$",
        ),
    ],
)
def test_a_file_of_the_users_that_cannot_be_read_is_told(
    content: str,
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text(content)
    assert re.search(told, sentence(capsys, scaffold, tmp_path / "run", "--model=own.py:net"))


class Broken:
    def on_round_logged(self, federation: Federation, metrics: dict[str, float]) -> None:
        if federation.round == 3:
            metrics["of my own"]


CLIENT_FACTS = """
from fl_lightning import Algorithm, Term


class Mine(Term):
    def {hook}:
        return {{}}["nothing"]


def mine() -> Algorithm:
    return Algorithm(Mine())
"""


def test_a_callback_that_raises_is_named_and_the_run_goes_on_later(
    tmp_path: Path, uninterrupted: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    said = sentence(capsys, scaffold, tmp_path / "run", callbacks=[Broken()])
    assert "KeyError: 'of my own' (test_bad_luck.py, line " in said
    assert "(raised in Broken.on_round_logged)" in said
    scaffold(tmp_path / "run", "--resume")
    assert runs.results(tmp_path / "run") == uninterrupted


@pytest.mark.parametrize("executor", ["sequential", "stacked"])
@pytest.mark.parametrize(
    "hook", ["start(self, w, v)", "gradient(self, oracle, w, v)", "update(self, delta, mean, v)"]
)
def test_a_term_that_raises_is_named(
    hook: str, executor: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = tmp_path / "own.py"
    own.write_text(CLIENT_FACTS.format(hook=hook))
    said = sentence(
        capsys, scaffold, tmp_path / "run", "--algorithm", f"{own}:mine", "--executor", executor
    )
    assert "KeyError: 'nothing' (own.py, line 7; FL_LIGHTNING_TRACEBACK=1" in said
    assert f"(raised in Mine.{hook.partition('(')[0]})" in said


def test_a_traceback_is_to_be_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FL_LIGHTNING_TRACEBACK", "1")
    with pytest.raises(KeyError):
        scaffold(tmp_path / "run", callbacks=[Broken()])


def test_a_mistake_of_this_package_keeps_its_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bug, ours = "def gradient(*_):\n    raise KeyError('a bug of ours')", drift.__file__
    exec(compile(bug, ours, "exec"), names := dict[str, Any]())
    monkeypatch.setattr(drift.ControlVariate, "gradient", names["gradient"])
    with pytest.raises(KeyError):
        scaffold(tmp_path / "run")


# --------------------------------------------------------------------------------------------------------- as a program


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--algorithm", "fedtogo"], "did you mean fedtoga"),
        (["--lr", "1e12", "--clip-norm", "none"], "no longer finite"),
    ],
    ids=str,
)
def test_a_recipe_ends_with_one_line_and_a_code(
    argv: list[str], words: str, tmp_path: Path
) -> None:
    command = [sys.executable, str(ROOT / "recipes" / "digits.py"), "--accelerator", "cpu", *argv]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert words in done.stderr


ELSEWHERE = """
import sys
from collections import OrderedDict

sys.modules["fl_lightning"] = sys.modules["callbacks"] = None  # as if it were not installed
import torch
from torch import nn

layers = nn.Flatten(), nn.Linear(64, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU(), nn.Linear(200, 10)
names = "flatten", "hidden1", "relu1", "hidden2", "relu2", "classifier"
network = nn.SequentialExecutor(OrderedDict(zip(names, layers)))
network.load_state_dict(torch.load(sys.argv[1], weights_only=True), strict=True)
x, y = torch.load(sys.argv[2], weights_only=True)
print((network(x).argmax(1) == y).double().mean().item())
"""


@pytest.mark.parametrize("file", ["model.pt", "best.pt"])
def test_the_exported_model_needs_nothing_but_torch(file: str, tmp_path: Path) -> None:
    folder, (_, test) = tmp_path / "run", sources.digits()
    argv = ["--run-dir", str(folder), "--accelerator", "cpu"]
    Experiment([sources.digits], [mlp], rounds=3, clients=8, checkpoint_every=1, argv=argv).run()
    torch.save((test.inputs(torch.arange(len(test))), test.y), tmp_path / "test.pt")
    command = [sys.executable, "-c", ELSEWHERE, str(folder / file), str(tmp_path / "test.pt")]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=True
    )
    accuracies = [float(row["test/accuracy"]) for row in runs.results(folder)["metrics"]]
    assert float(done.stdout) == pytest.approx(
        max(accuracies) if file == "best.pt" else accuracies[-1]
    )
