"""The README says what is so: its commands run, its programs work, its table is what the terms cost."""

import os
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from locations import ROOT
from PIL import Image
from torch.distributed.run import get_args_parser

from fl_lightning import DeviceDataset
from fl_lightning.__main__ import main
from fl_lightning.algorithms.registry import ALGORITHMS
from fl_lightning.cli import list_algorithms
from fl_lightning.data import sources
from fl_lightning.experiment import Experiment
from fl_lightning.models import mlp

README = (ROOT / "README.md").read_text()
COMMANDS = [
    line for block in re.findall(r"```bash\n(.*?)```", README, re.S) for line in block.splitlines()
]
PROGRAMS = re.findall(r"```python\n(.*?)```", README, re.S)
FABRICS_OWN = {"--accelerator", "--devices", "--strategy", "--precision"}
FABRICS_OWN |= {"--num-nodes", "--node-rank", "--main-address"}
ALONE = "--accelerator", "cpu", "--devices", "1"


def small(channels: int, side: int, classes: int) -> tuple[DeviceDataset, DeviceDataset]:
    g = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (1200, channels, side, side), generator=g, dtype=torch.uint8)
    names = tuple(map(str, range(classes)))
    data = DeviceDataset(
        x, torch.arange(1200) % classes, names, (0.5,) * channels, (0.25,) * channels
    )
    return data, data


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder like a clone, with the README's own file, a folder of images, and small stand-ins for downloads."""
    (tmp_path / "recipes").symlink_to(ROOT / "recipes")
    (tmp_path / "mine.py").write_text(PROGRAMS[0])
    (tmp_path / "own.py").write_text(PROGRAMS[1])
    for split, count in (("train", 500), ("test", 2)):
        for name in ("cat", "dog"):
            folder = tmp_path / "path/to/folder" / split / name
            folder.mkdir(parents=True)
            for i in range(count):
                Image.new("RGB", (32, 32), (i % 256, 99, 30)).save(folder / f"{i}.png")
    for name, shape in (
        ("mnist", (1, 28, 10)),
        ("cifar10", (3, 32, 10)),
        ("cifar100", (3, 32, 100)),
    ):

        def source(
            root: Path, shape: tuple[int, int, int] = shape
        ) -> tuple[DeviceDataset, DeviceDataset]:
            return small(*shape)

        source.__name__ = name
        monkeypatch.setattr(sources, name, source)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run_here(recipe: str, arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [recipe, *arguments])
    runpy.run_path(recipe, run_name="__main__")


def test_torchrun_leaves_the_options_of_recipes_alone() -> None:
    """Which `fabric run` is; it refuses what could be the beginning of two of its own, even behind the program."""
    parser = get_args_parser()
    for name in Experiment([sources.digits], [mlp], argv=[]).resolved():
        flag = f"--{name.replace('_', '-')}"
        assert parser.parse_args(["recipe.py", flag, "x"]).training_script_args == [flag, "x"]


def without_fabrics_own(arguments: list[str]) -> list[str]:
    taken = {i + offset for i, a in enumerate(arguments) if a in FABRICS_OWN for offset in (0, 1)}
    return [a for i, a in enumerate(arguments) if i not in taken]


@pytest.mark.parametrize("command", [c for c in COMMANDS if "run recipes/" in c])
def test_a_command_with_fabric_run(
    command: str,
    workplace: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In this process, one round; `fabric run` itself is below."""
    recipe, *arguments = shlex.split(command.removeprefix("fabric run "))
    run_here(recipe, [*without_fabrics_own(arguments), *ALONE, "--rounds", "1"], monkeypatch)
    assert "round 1/1  accuracy" in capsys.readouterr().out


def test_the_commands_with_python(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In order, since the later ones go on with the run of the earlier ones."""
    commands = [shlex.split(c)[1:] for c in COMMANDS if c.startswith("python ")]
    assert len(commands) == 5
    for recipe, *arguments in commands:
        if "--help" in arguments:
            with pytest.raises(SystemExit) as stop:
                run_here(recipe, arguments, monkeypatch)
            assert stop.value.code == 0
        else:
            run_here(recipe, arguments, monkeypatch)
    (compare,) = (shlex.split(c)[1:] for c in COMMANDS if c.startswith("fl-lightning compare "))
    main(compare)
    shown = capsys.readouterr().out
    for said in ("--algorithm.reference", "round 20/20", "round 40/40", "rho 0.05: test accuracy"):
        assert said in shown
    assert "| fedtoga | 2 | 40 " in shown, "the table of runs/digits"
    assert (workplace / "curves.png").is_file()


def test_make_targets_are_run_by_ci() -> None:
    ci = (ROOT / ".ci/run").read_text()
    targets = [c for c in COMMANDS if c.startswith("make ")]
    assert targets == ["make demo", "make test"]
    assert all(target in ci for target in targets)
    run = (
        "fabric run recipes/",
        "python recipes/",
        "make ",
        "fl-lightning list",
        "fl-lightning compare ",
    )
    assert [c for c in COMMANDS if c.startswith(run)] == COMMANDS, (
        "every command is run by one of these tests"
    )


def fabric_run(*arguments: str, cwd: Path) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [str(Path(sys.executable).parent / "fabric"), "run", *arguments]
    done = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_fabric_run_gives_the_same_model_on_one_rank_and_on_two(workplace: Path) -> None:
    common = ["--algorithm", "fedtoga", "--rounds", "5", "--evaluate-every", "5"]
    (workplace / "runs/digits/fedtoga-0").mkdir(
        parents=True
    )  # the second rank does not know which folder is free
    ranks = ["--accelerator", "cpu", "--devices", "2", "--main-port", str(_free_port())]
    assert "1 rank(s)" in fabric_run(
        "recipes/digits.py", *common, "--run-dir", "one", cwd=workplace
    )
    assert "2 rank(s)" in fabric_run("recipes/digits.py", *ranks, *common, cwd=workplace)
    one, two = (
        torch.load(workplace / run / "model.pt", weights_only=True)
        for run in ("one", "runs/digits/fedtoga-1")
    )
    for name in one:
        torch.testing.assert_close(one[name], two[name], rtol=0, atol=1e-5)


def _free_port() -> int:
    import socket

    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def test_the_library_trains_without_a_recipe(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    exec(PROGRAMS[2], {"__name__": "own"})
    last = capsys.readouterr().out.splitlines()[-1]
    assert re.fullmatch(r"round 20: 9\d\.\d%, worst class \d\d\.\d%", last)


def test_the_snippet_for_lightning_wraps_the_optimizer() -> None:
    names: dict[str, object] = {"torch": torch}
    exec(PROGRAMS[3], names)
    optimizer = names["configure_optimizers"](torch.nn.Linear(2, 2))  # type: ignore[operator]
    assert type(optimizer).__name__ == "SAM"


def test_the_table_of_algorithms_is_what_the_terms_cost() -> None:
    table = list_algorithms.markdown()
    assert table in README, f"the README's table should read\n\n{table}"


@pytest.mark.parametrize("to_a_terminal", [False, True])
def test_the_list_shows_every_algorithm_and_anything_else_how_to_go_on(
    to_a_terminal: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: to_a_terminal)
    main(["list"])
    shown = capsys.readouterr().out
    assert all(name in shown for name in ALGORITHMS)
    with pytest.raises(SystemExit) as left:
        main(["train"])
    assert left.value.code == 2
    assert "fl-lightning list" in capsys.readouterr().out
