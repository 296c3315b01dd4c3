"""A run's data, model, partition and scalars, made again from its folder."""

import runpy
import sys
from pathlib import Path

import pytest
import torch

from fl_lightning.data import sources
from fl_lightning.experiment import Experiment
from fl_lightning.lab import report
from fl_lightning.models import mlp
from fl_lightning.runs.chosen import find_chosen
from fl_lightning.runs.code import copy_of
from fl_lightning.runs.config import Config, load
from fl_lightning.runs.run import Run

SHORT = "--rounds", "2", "--local-steps", "1", "--accelerator", "cpu", "--devices", "1"

OWN = """
from pathlib import Path

import torch
from neighbor import CLASSES

from fl_lightning import DeviceDataset


def blobs(root: Path, side: int = 2, widths: tuple[int, ...] = ()):
    assert isinstance(root, Path) and isinstance(widths, tuple)
    y = torch.arange(40) % 3
    x = torch.randn(40, 1, side, side, generator=torch.Generator().manual_seed(0))
    return DeviceDataset(x, y, CLASSES), DeviceDataset(x[:9], y[:9], CLASSES)


class Linear(torch.nn.Sequential):
    def __init__(self, inputs: int, classes: int):
        super().__init__(torch.nn.Flatten(), torch.nn.Linear(inputs, classes))
"""

RECIPE = (
    OWN
    + """
from fl_lightning.experiment import Experiment

if __name__ == "__main__":
    Experiment([blobs], [Linear], clients=4, partition="iid").run()
"""
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Run:
    folder = tmp_path_factory.mktemp("trained") / "run"
    argv = "--run-dir", str(folder), "--model.hidden", "16", "--clients", "5", *SHORT
    Experiment([sources.digits], [mlp], argv=argv).run()
    return Run.read(folder)


@pytest.fixture
def own(tmp_path, monkeypatch) -> Path:
    """A folder with a user's data source and model, and a file that they import."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "neighbor", raising=False)
    monkeypatch.chdir(tmp_path)
    Path("code").mkdir()
    Path("code/neighbor.py").write_text("CLASSES = 'a', 'b', 'c'")
    Path("code/own.py").write_text(OWN)
    return tmp_path / "code"


def test_a_run_gives_its_data_model_partition_and_scalars(trained):
    train, test = trained.data()
    assert (len(train), len(test)) == (1437, 360)
    model = trained.model()
    state = torch.load(trained.path / "model.pt", weights_only=True)
    assert all(torch.equal(t, state[name]) for name, t in model.state_dict().items())
    assert not model.training
    right = model(test.inputs(torch.arange(len(test)))).argmax(1) == test.y
    frame = trained.frame()
    assert right.float().mean().item() == pytest.approx(frame["test/accuracy"].iloc[-1])
    assert trained.partition().sizes.sum() == len(train)
    assert frame["round"].tolist() == [1, 2]
    assert frame["model.hidden"].tolist() == [(16,)] * 2
    loaded = report.load(trained.path)
    assert loaded.drop(columns="method").equals(frame)


def test_the_model_of_a_round_has_the_head_that_was_not_trained(tmp_path):
    argv = "--run-dir", str(tmp_path), "--algorithm", "fedbabu", "--clients", "5", *SHORT
    Experiment([sources.digits], [mlp], argv=argv).run()
    run = Run.read(tmp_path)
    last, of_round = run.model().state_dict(), run.model(round=2).state_dict()
    assert all(torch.equal(t, of_round[name]) for name, t in last.items())
    with pytest.raises(ValueError, match=r"round-7\.ckpt does not exist.*--keep-checkpoints"):
        run.model(round=7)


@pytest.mark.parametrize("change", ["nothing", "edited", "gone"])
def test_user_files_are_used_as_they_were(own, change, monkeypatch, tmp_path):
    argv = "--data", "code/own.py:blobs", "--model", "code/own.py:Linear", "--data.side", "3"
    argv = *argv, "--partition", "iid", "--clients", "4", "--run-dir", "run", *SHORT
    Experiment([sources.digits], [mlp], argv=argv).run()
    monkeypatch.chdir("/")
    if change == "edited":
        (own / "own.py").write_text("raise RuntimeError('edited')")
    elif change == "gone":
        (own / "own.py").unlink()
    run = Run.read(tmp_path / "run")
    assert run.data()[0].shape == (1, 3, 3)
    assert run.model()[1].in_features == 9


def test_each_run_imports_its_own_neighbor(tmp_path, monkeypatch):
    """Of runs that are analyzed together, between which the user has edited it."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in "ab":
        copy = tmp_path / name / copy_of(Path("own.py"))
        copy.parent.mkdir(parents=True)
        copy.with_name("edited.py").write_text(f"name = {name!r}")
        copy.write_text("from edited import name\n\ndef mine():\n    return name\n")
        made = {"directory": str(tmp_path), "functions": {"model": "own.py:mine"}}
        assert find_chosen("model", {"model": "own.py:mine"}, made, tmp_path / name)() == name


def test_functions_of_a_recipe_are_found(own, monkeypatch):
    (own / "recipe.py").write_text(RECIPE)
    monkeypatch.setattr(sys, "argv", ["code/recipe.py", "--run-dir", "run", *SHORT])
    monkeypatch.syspath_prepend(own)
    runpy.run_path("code/recipe.py", run_name="__main__")
    run = Run.read("run")
    assert len(run.data()[1]) == 9
    assert run.model()[1].in_features == 4


@pytest.mark.parametrize(("part", "train", "test"), [("test", 1437, 270), ("clients", 1077, 360)])
def test_the_validation_part_is_left_out(part, train, test, tmp_path):
    argv = "--run-dir", str(tmp_path / "run"), "--validation", "0.25", "--validation-from", part
    Experiment([sources.digits], [mlp], clients=2, argv=(*argv, *SHORT)).run()
    run = Run.read(tmp_path / "run")
    assert len(run.data()[1]) == test
    assert int(run.partition().sizes.sum()) == pytest.approx(train, abs=1)


def refusal(run: Run, **functions: str) -> str:
    """The sentence when these functions are recorded instead."""
    environment = load((run.path / "environment.yaml").read_text())
    changed = Run(run.path, run.config)
    environment["functions"] |= functions
    changed.__dict__["environment"] = environment if functions else {}
    with pytest.raises(ValueError, match=r".") as error:
        changed.model()
    assert len(str(error.value).replace(str(run.path), "").split()) <= 30
    return str(error.value)


def test_what_cannot_be_made_again_ends_in_a_sentence(trained, tmp_path):
    assert "functions" in refusal(trained)
    assert "no.such.module:x" in refusal(trained, data="no.such.module:x")
    assert "jobs:f.<locals>.g" in refusal(trained, data="jobs:f.<locals>.g")
    assert "hidden" in refusal(trained, model="fl_lightning.models.fedavg_cnn:fedavg_cnn")
    narrow = Run(trained.path, Config({**trained.config, "model.hidden": [8]}))
    with pytest.raises(ValueError, match=r"does not fit the model mlp"):
        narrow.model()
    unguarded = tmp_path / "recipe.py"
    unguarded.write_text("Experiment([], []).run()")
    assert "would train" in refusal(trained, data=f"{unguarded}:blobs")


def test_functions_that_a_user_adds_to_the_environment_are_enough(trained):
    run = Run(trained.path, trained.config)
    functions = {"data": "fl_lightning.data.sources:digits", "model": "fl_lightning.models.mlp:mlp"}
    run.__dict__["environment"] = {"functions": functions}
    assert run.model()[1].out_features == 16


def test_a_missing_model_or_partition_is_named(trained, tmp_path):
    empty = Run(tmp_path, trained.config)
    for make, name in ((empty.model, "model.pt"), (empty.partition, "partition-")):
        with pytest.raises(ValueError, match=name):
            make()


@pytest.mark.parametrize("size", [0, 5000])
def test_a_model_that_was_not_copied_to_its_end_is_one_sentence(size, trained, tmp_path):
    torn = (trained.path / "model.pt").read_bytes()[:size]
    (tmp_path / "model.pt").write_bytes(torn)
    with pytest.raises(ValueError, match=r"model\.pt does not fit .* it is damaged"):
        Run(tmp_path, trained.config).model(torch.nn.Linear(1, 1))


def test_another_folder_of_data_is_read(trained):
    assert Run.read(trained.path, data_dir="elsewhere").config["data_dir"].startswith("/")


def test_data_that_have_changed_are_warned_of(trained, monkeypatch):
    monkeypatch.setitem(trained.environment, "data", ["0" * 16, "1" * 16])
    with pytest.warns(UserWarning, match="the data of .* have changed"):
        trained.data()
