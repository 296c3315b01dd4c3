"""The options of a run: what each does to it, and which runs are the same."""

import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import jobs
import pytest
from refusals import Stops, experiment

from fl_lightning.cli.recipes import experiment_of, run_recipe
from fl_lightning.runs.code import copies, copy_of
from fl_lightning.runs.config import Config
from fl_lightning.runs.options import EXTENT, NUMBERS, ROUNDING, Options
from fl_lightning.runs.run import Run

BEFORE = {"algorithm": "fedavg", "data": "digits", "seed": 0, "rounds": 5, "executor": "sequential"}
BEFORE |= {"parallel_clients": 10, "compile": False, "deterministic": False, "lr": 0.1}


OWN_CALLBACK = {"callback": "mine.py:Mine", "callback.every": 3}
CHANGES: dict[str | None, list[dict[str, Any]]] = {
    NUMBERS: [
        {"lr": 0.2},
        {"algorithm.rho": 0.2},
        {"precision": "bf16-mixed"},
        {"evaluate_every": 4},
    ],
    EXTENT: [{"rounds": 9}, {"finetune_epochs": [1, 5]}, OWN_CALLBACK],
    ROUNDING: [{"executor": "stacked"}, {"parallel_clients": 5}, {"compile": True}],
    None: [
        {"logger": ["mlflow"]},
        {"on_divergence": "skip-client"},
        {"data_dir": "elsewhere"},
        {"checkpoint_every": 1, "keep_checkpoints": 1},
    ],
}


@pytest.mark.parametrize(
    ("change", "effect"), [(change, effect) for effect, of in CHANGES.items() for change in of]
)
def test_what_an_option_does_decides_which_runs_are_the_same(change, effect):
    before, now = Config(BEFORE), Config(BEFORE | change)
    for kind in (NUMBERS, EXTENT, ROUNDING):
        assert before.differences(now, kind) == (sorted(change) if kind is effect else [])
    always = Config(BEFORE | {"deterministic": True}), Config(now | {"deterministic": True})
    for first, second, kept in ((before, now, {NUMBERS}), (*always, {NUMBERS, ROUNDING})):
        if effect in kept:
            with pytest.raises(ValueError, match=f"{next(iter(change))} was"):
                first.check_resumption(second)
        else:
            first.check_resumption(second)


@pytest.mark.parametrize("source", ["image_folder", "text_folder", "mine.py:photos", "a recipe's"])
def test_another_folder_of_own_data_is_another_run_but_may_move(source):
    before, now = (Config(BEFORE, data=source, data_dir=folder) for folder in ("a", "b"))
    assert before.differences(now, NUMBERS, EXTENT) == ["data_dir"]
    before.check_resumption(now)


def test_a_file_of_data_may_move_and_one_of_a_method_may_not(tmp_path):
    """The content of data is compared with the checkpoint's."""
    file = tmp_path / "moved"
    for option, refused in ("data.file", False), ("algorithm.file", True):
        before, now = (Config(BEFORE | {option: str(place)}) for place in ("gone", file))
        file.touch()
        with pytest.raises(ValueError, match=option) if refused else nullcontext():
            before.check_resumption(now)
        file.unlink()
        with pytest.raises(ValueError, match=option):
            before.check_resumption(now)


def test_an_option_that_an_older_run_lacks_has_its_default(tmp_path):
    (tmp_path / "config.yaml").write_text("algorithm: {name: fedavg}\nrounds: 3\nseed: 0\n")
    read = Config.read(tmp_path)
    assert read["sampling"] == Options().sampling == "fixed"
    assert (read["perturb"], read["server_optimizer"]) == ("none", "mean")


@pytest.mark.parametrize(("mu", "refused"), [("0.1", False), ("0.2", True)])
def test_an_option_of_a_method_that_a_resumed_run_lacks_has_its_default(mu, refused, tmp_path):
    now = experiment(tmp_path, "--algorithm", "fedprox", "--algorithm.mu", mu).config
    before = Config(now)
    del before["algorithm.mu"]
    with pytest.raises(ValueError, match=r"algorithm\.mu") if refused else nullcontext():
        before.check_resumption(now)


OWN = """
from fl_lightning import Algorithm
from fl_lightning.terms import SAM
from helper import RHO
from parts import first


def mine():
    return Algorithm(SAM(RHO))
"""


@pytest.fixture
def own(tmp_path, monkeypatch) -> Callable[..., Path]:
    """Write a method of a user's that imports from beside it, and a folder of a run."""
    monkeypatch.chdir(tmp_path)
    Path("parts").mkdir()
    for name, text in (("mine.py", OWN), ("parts/__init__.py", ""), ("parts/first.py", "")):
        Path(name).write_text(text)

    def written(rho: float) -> Path:
        Path("helper.py").write_text(f"RHO = {rho}\n")
        return tmp_path / "run"

    return written


def test_a_users_file_and_what_it_imports_from_beside_it_belong_to_the_run(own, capsys):
    argv = "--algorithm", "mine.py:mine"
    experiment(own(0.05), *argv).run()
    folder = own(0.05)
    copied = sorted(str(file.relative_to(folder / "own")) for file in folder.rglob("own/**/*.py"))
    assert copied == ["helper.py", "mine.py", "parts/__init__.py", "parts/first.py"]
    same, other = (experiment(own(rho), *argv).config for rho in (0.05, 5.0))
    assert Config.read(folder).differences(same, NUMBERS) == []
    assert Config.read(folder).differences(other, NUMBERS) == ["code"]
    capsys.readouterr()
    experiment(own(0.05), "--resume", "--rounds", "2").run()
    assert "has changed" not in capsys.readouterr().out
    own(5.0)
    Path("mine.py").write_text(OWN.replace("SAM(RHO)", "SAM(2 * RHO)"))
    experiment(folder, "--resume", "--rounds", "3").run()
    said = capsys.readouterr().out
    for name, before, now in (("helper", " 0.05", " 5.0"), ("mine", "(RHO)", "(2 * RHO)")):
        assert f"{name}.py has changed since the run began" in said
        assert before in (folder / f"own/{name}.py").read_text()
        assert now in (folder / f"own/{name}-from-round-3.py").read_text()


RECIPE = """
from fl_lightning.experiment import Experiment
from fl_lightning.data.sources import digits
from nets import linear

if __name__ == "__main__":
    Experiment([digits], [linear], clients=4, rounds=1).run()
"""
NETS = """
from torch import nn


def linear(inputs: int, classes: int):
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, classes, bias={}))
"""


def test_what_a_recipe_imports_from_beside_it_belongs_to_the_run(tmp_path, monkeypatch):
    recipe, nets, folder = tmp_path / "recipe.py", tmp_path / "nets.py", tmp_path / "run"
    recipe.write_text(RECIPE)
    nets.write_text(NETS.format(True))
    run_recipe(str(recipe), ["--accelerator", "cpu", "--run-dir", str(folder)])
    nets.write_text(NETS.format(False))
    now = experiment_of(str(recipe), ["--accelerator", "cpu"]).config
    assert Config.read(folder).differences(now, NUMBERS) == ["code"]
    monkeypatch.delitem(sys.modules, "nets")  # as in another process
    assert len(list(Run.read(folder).model().parameters())) == 2


INNER = "first", "inner/third", "inner/fourth"
"""Modules that the second one imports, and itself."""


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("from parts.first import X", {"parts/first.py"}),
        ("from parts import first as f, second", {"parts/first.py"}),
        ("import parts.inner.third", {f"parts/{n}.py" for n in INNER}),
        ("import torch, parts, fl_lightning", set()),
        ("import old", {"old.py"}),
    ],
)
def test_imports_are_found_in_folders_without_init_and_beside_the_file_of_a_link(
    text, found, tmp_path
):
    beside, link = tmp_path / "beside", tmp_path / "link.py"
    for name in INNER:
        (beside / f"parts/{name}.py").parent.mkdir(parents=True, exist_ok=True)
        (beside / f"parts/{name}.py").write_text("")
    (beside / "parts/inner/third.py").write_text("from . import fourth\nfrom .. import first\n")
    (beside / "old.py").write_text("print 1")
    (beside / "torch").mkdir()
    (beside / "fl_lightning").mkdir()
    (beside / "fl_lightning/__init__.py").write_text("")
    (beside / "mine.py").write_text(text)
    link.symlink_to(beside / "mine.py")
    own = copy_of(link).parent
    assert copies([link]) == {own / "link.py": link} | {own / f: beside / f for f in found}


def test_a_run_says_itself_that_it_has_ended(tmp_path):
    """A run that is extended has not, until its new last round."""
    folder = tmp_path / "run"
    experiment(folder, "--rounds", "2").run()
    assert Run.read(folder).ended == {"round": 2, "reason": "the last round"}
    with pytest.raises(SystemExit):
        experiment(folder, "--resume", "--rounds", "4", callbacks=[Stops(3)]).run()
    (folder / "model.pt").touch()
    assert Run.read(folder).ended is None
    experiment(folder, "--resume", "--rounds", "4").run()
    rows = (folder / "metrics.csv").read_text().splitlines(keepends=True)
    (folder / "metrics.csv").write_text("".join(rows[:3]))
    with pytest.raises(ValueError, match="ends with round 2 of 4"):
        Run.read(folder)
    assert jobs.results(folder)["metrics"][-1]["round"] == "2"


def test_data_of_a_project_that_has_moved_are_found_where_they_lie_now(tmp_path, monkeypatch):
    before, now = tmp_path / "before", tmp_path / "now"
    (now / "data").mkdir(parents=True)
    monkeypatch.chdir(now)
    own = {"algorithm": "fedavg", "rounds": 1, "seed": 0, "data": "image_folder"}
    Path("config.yaml").write_text(Config(own | {"data_dir": f"{before}/data"}).text())
    assert Config.read(Path())["data_dir"] == f"{before}/data"
    Path("environment.yaml").write_text(f"directory: {before}\n")
    assert Config.read(Path())["data_dir"] == f"{now}/data"
    (before / "data").mkdir(parents=True)
    assert Config.read(Path())["data_dir"] == f"{before}/data", "it may hold other data"
