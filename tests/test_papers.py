"""The commands of recipes/presets/README.md, in order: every table and figure of the four papers.

Runs have two rounds of three clients and two steps on small random images, with small networks. A
few cells of each table are run, of one seed or two.
"""

import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from functools import cache, partial
from glob import glob
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from locations import ROOT

from fl_lightning import BernoulliSampling, UniformSampling
from fl_lightning.__main__ import main
from fl_lightning.cli.recipes import run_recipe
from fl_lightning.lab.commands import table
from fl_lightning.lab.sweep import plan
from fl_lightning.lab.sweep.plan import Cell, Job
from fl_lightning.runs import code

README = (ROOT / "recipes/presets/README.md").read_text()
CELLS = plan.command_lines
PARTS = cache(code._parts)  # the recipe imports the same for every run
SMALL = str(ROOT / "tests/helpers/small_papers.py")


def items() -> list[Any]:
    """The rows of the tables: names of figures and tables, and their commands."""
    found = list[Any]()
    for paper, text in re.findall(r"^## (\w+)$(.*?)(?=^## |\Z)", README, re.M | re.S):
        for item, _, cell in re.findall(r"^\| ([^|]*) \| ([^|]*) \| (.*) \|$", text, re.M):
            if commands := [part for part in re.findall(r"`([^`]+)`", cell) if " " in part]:
                found.append(pytest.param(commands, id=f"{paper}-{item}"))
    return found


def few_cells(
    read: Sequence[str], cells: Callable[..., Iterator[Any]], *given: Any
) -> list[tuple[Cell, list[str]]]:
    """Some of a table's cells that later commands read, and all that they name; or its first one.

    `test_presets.py` shows that the others are runs.
    """
    by_folder = {folder_of(cell): (cell, line) for cell, line in cells(*given)}
    patterns = [Path(word).name for word in read]
    later = [name for name in by_folder if any(fnmatchcase(name, p) for p in patterns)]
    some = later[:: len(later) // 3 | 1]  # an odd stride is not always at the same row
    few = {*(some or [*by_folder][:1]), *patterns}
    return [line for folder, line in by_folder.items() if folder in few]


def folder_of(cell: Cell) -> str:
    labels = (plan._slug(part) for part in (cell.column, cell.row, cell.tuned) if part)
    return f"{'-'.join(labels)}-s0"


def make_all(stacks: Sequence[Sequence[Job]], _: Any) -> tuple[dict[Path, str], list[str]]:
    """Make the runs in this process."""
    for job in chain.from_iterable(stacks):
        job.run()
    return {}, []


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tables share runs in it."""
    return tmp_path_factory.mktemp("papers")


def run(words: list[str]) -> int:
    if words[0] == "python":
        run_recipe(str(ROOT / words[1]), words[2:])
        return 0
    if words[1] == "table":
        words += ["--recipe", SMALL, "--rounds", "2", "--local-steps", "2"]
        words += [] if "--seeds" in words else ["--seeds", "0"]
    if "--round" in words:
        words[words.index("--round") + 1] = "2"
    words = [word.replace("client=7", "client=0") for word in words]  # who takes part
    words = [word.replace("0,1,2", "0,1") for word in words]  # seeds
    if words[1] == "analyze":
        words += ["--samples", "100"]  # one batch
    if words[1:3] == ["analyze", "surface"]:
        words += ["--points", "3"]
    if words[1] == "partition":
        words = [*words[:2], SMALL, *words[2:]]
    expanded = [sorted(glob(w)) if w.startswith("runs/") else [w] for w in words[1:]]
    try:
        main([word for matches in expanded for word in matches])
    except SystemExit as end:
        return end.code or 0
    return 0


@pytest.mark.parametrize("commands", items())
def test_the_commands_of_an_item(commands, folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    read = [word for text in commands for word in shlex.split(text) if word.startswith("runs/")]
    monkeypatch.setattr(plan, "command_lines", partial(few_cells, read, CELLS))
    monkeypatch.setattr(table, "run_all", make_all)
    monkeypatch.setattr(table, "start_server", lambda _: None)
    monkeypatch.setattr(code, "_parts", PARTS)
    for kind in UniformSampling, BernoulliSampling:
        monkeypatch.setattr(kind, "__call__", lambda self, n, *_: [*range(min(3, n))])
    words: list[str] = []
    for text in commands:
        words = [*(words if text.startswith("--") else []), *shlex.split(text)]
        assert run(words) == 0, f"{text}: {capsys.readouterr().err}"
        if "--figure" in words:
            assert Path(words[words.index("--figure") + 1]).stat().st_size
