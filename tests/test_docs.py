"""The README and the pages of docs/: their commands and programs run, in order, in one folder for each page.

A block marked `bash` or `python` is run, one marked `sh` or `text` is not. A Python block with a title is saved
under it. Runs are shortened: a twentieth of their rounds, one where none are given, on one process; large data sets
are replaced by small random ones.
"""

import os
import re
import runpy
import shlex
import socket
import subprocess
import sys
from collections.abc import Callable
from inspect import signature
from pathlib import Path

import pytest
import torch
from locations import ROOT
from PIL import Image
from torch.distributed.run import get_args_parser

from fl_lightning import DeviceDataset
from fl_lightning.__main__ import main
from fl_lightning.algorithms.registry import ALGORITHMS
from fl_lightning.data import sources
from fl_lightning.experiment import Experiment
from fl_lightning.models import mlp

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r'^```(bash|python)(?: title="([\w.]+)")?\n(.*?)^```$', re.S | re.M)
LAUNCHING = {"--accelerator", "--devices", "--strategy", "--num-nodes", "--node-rank"}
LAUNCHING |= {"--main-address", "--main-port"}
STAND_INS = {"mnist": (1, 28, 10), "cifar10": (3, 32, 10), "cifar100": (3, 32, 100)}


def blocks(page: Path) -> list[tuple[str, str, str]]:
    return BLOCK.findall(page.read_text())


def small(channels: int, side: int, classes: int) -> Callable[..., tuple[DeviceDataset, ...]]:
    g = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (500, channels, side, side), generator=g, dtype=torch.uint8)
    scale = (0.5,) * channels
    data = DeviceDataset(
        x, torch.arange(500) % classes, tuple(map(str, range(classes))), scale, scale
    )
    return lambda root: (data, data)


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder like a clone, with a folder of images, and small stand-ins for downloads."""
    (tmp_path / "recipes").symlink_to(ROOT / "recipes")
    for split, count in (("train", 100), ("test", 2)):
        for name in ("cat", "dog"):
            folder = tmp_path / "path/to/folder" / split / name
            folder.mkdir(parents=True)
            for i in range(count):
                Image.new("RGB", (32, 32), (i, 99, 30)).save(folder / f"{i}.png")
    for name, shape in STAND_INS.items():
        source = small(*shape)
        source.__name__ = name
        monkeypatch.setattr(sources, name, source)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def shortened(arguments: list[str]) -> list[str]:
    """The arguments of a recipe without those of the launcher, and with a twentieth of the rounds."""
    dropped = {i + k for i, a in enumerate(arguments) if a in LAUNCHING for k in (0, 1)}
    kept = [a for i, a in enumerate(arguments) if i not in dropped]
    rounds = int(kept[kept.index("--rounds") + 1]) if "--rounds" in kept else 20
    return [*kept, "--accelerator", "cpu", "--devices", "1", "--rounds", str(max(1, rounds // 20))]


def run_recipe(recipe: str, arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [recipe, *arguments])
    runpy.run_path(recipe, run_name="__main__")


def run_command(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    words = shlex.split(line)
    if words[0] == "fl-lightning":
        return main(words[1:])
    (at,) = (i for i, word in enumerate(words) if word.startswith("recipes/"))
    recipe, arguments = words[at], words[at + 1 :]
    if "--help" in arguments:
        with pytest.raises(SystemExit) as stop:
            run_recipe(recipe, arguments, monkeypatch)
        assert stop.value.code == 0
    elif recipe == "recipes/sam_in_lightning.py":
        run_recipe(recipe, [*arguments, "--epochs", "1"], monkeypatch)
    else:
        run_recipe(recipe, shortened(arguments), monkeypatch)


@pytest.mark.parametrize(
    "page", [p for p in PAGES if blocks(p)], ids=lambda page: str(page.relative_to(ROOT))
)
def test_the_blocks_of_a_page_run(
    page: Path, workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: dict[str, object] = {"__name__": "page"}
    for language, title, text in blocks(page):
        if title:
            Path(title).write_text(text)
        elif language == "python":
            exec(text, names)
        else:
            for line in text.splitlines():
                run_command(line, monkeypatch)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_files_that_a_page_names_exist(page: Path) -> None:
    text = page.read_text()
    named = re.findall(r"`((?:docs|fl_lightning|benchmarks|recipes|tests)/[\w./-]+\w)`", text)
    linked = re.findall(r"\]\(([\w./-]+)[#)]", text)
    missing = [name for name in named if not (ROOT / name).exists()]
    missing += [link for link in linked if not (page.parent / link).exists()]
    generated = re.compile(r"(\.\./)*methods/\w+\.md")
    assert not [name for name in missing if not generated.fullmatch(name)]


def test_the_readme_is_short_and_links_every_method() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.split()) <= 1000
    linked = re.findall(r"\[(\w+)\]\((fl_lightning/algorithms/\w+\.py)#(\w+)\)", text)
    files = {name: make.__module__.replace(".", "/") + ".py" for name, make in ALGORITHMS.items()}
    assert {name: file for name, file, anchor in linked if name == anchor} == files


def test_ci_runs_the_make_targets_of_the_readme() -> None:
    ci = (ROOT / ".ci/run").read_text()
    assert all(target in ci for target in ("make demo", "make test"))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_page_of_a_method_shows_its_options_and_terms(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs")
    import method_pages

    page, make = method_pages.page(name), ALGORITHMS[name]
    for term in make().terms:
        assert f"### {type(term).__name__}\n" in page
    for option in signature(make).parameters:
        (row,) = (line for line in page.splitlines() if f"`--algorithm.{option}`" in line)
        assert all(cell.strip() for cell in row.split("|")[1:-1]), f"an empty cell: {row}"
    assert f"]({name}.md)" in method_pages.index()


def test_torchrun_leaves_the_options_of_recipes_alone() -> None:
    """`fabric run` is torchrun, which refuses an option that abbreviates two of its own, even behind the program."""
    parser = get_args_parser()
    for name in Experiment([sources.digits], [mlp], argv=[]).resolved():
        flag = f"--{name.replace('_', '-')}"
        assert parser.parse_args(["recipe.py", flag, "x"]).training_script_args == [flag, "x"]


def test_fabric_run_on_two_ranks_gives_the_model_of_one(
    workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    common = ["--algorithm", "fedtoga", "--rounds", "3", "--evaluate-every", "3"]
    alone = ["--accelerator", "cpu", "--devices", "1", "--run-dir", "one"]
    run_recipe("recipes/digits.py", [*common, *alone], monkeypatch)
    # the second rank does not know which folder is free
    (workplace / "runs/digits/fedtoga-0").mkdir(parents=True)
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = str(s.getsockname()[1])
    ranks = ["--accelerator", "cpu", "--devices", "2", "--main-port", port]
    fabric = str(Path(sys.executable).parent / "fabric")
    done = subprocess.run(
        [fabric, "run", "recipes/digits.py", *ranks, *common],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert "2 rank(s)" in done.stdout
    one, two = (
        torch.load(workplace / run / "model.pt", weights_only=True)
        for run in ("one", "runs/digits/fedtoga-1")
    )
    for name in one:
        torch.testing.assert_close(one[name], two[name], rtol=0, atol=1e-5)
