"""The commands of recipes/presets/README.md, in order: every table and figure of the four papers.

Runs have two rounds of one step on small random images, with small networks. A few cells of each
table are run, of one seed.
"""

import re
import shlex
from collections.abc import Sequence
from fnmatch import fnmatchcase
from functools import cache, partial
from glob import glob
from pathlib import Path
from typing import Any

import pytest
from locations import ROOT

from fl_lightning.__main__ import main
from fl_lightning.cli.recipes import run_recipe
from fl_lightning.lab.commands import table
from fl_lightning.lab.sweep.plan import Job
from fl_lightning.runs import code

pytestmark = pytest.mark.slow
README = (ROOT / "recipes/presets/README.md").read_text()
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


def make_few(read: Sequence[str], jobs: Sequence[Job], _: Any) -> tuple[dict[Path, str], list[str]]:
    """Make one run in this process, or some of those that are read later.

    Args:
        read: The runs that later commands read: all that are named, and a few of each pattern.
        jobs: The runs of the table.
    """
    jobs = [job for job in jobs if job.state != "finished"]
    later = [job for job in jobs if any(fnmatchcase(str(job.folder), p) for p in read)]
    few = later[:: max(1, len(later) // 4)] or jobs[:1]
    few += [job for job in jobs if str(job.folder) in read and job not in few]
    for job in few:
        job.run()
    return {}, []


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tables share runs in it."""
    return tmp_path_factory.mktemp("papers")


def run(words: list[str]) -> int:
    """The exit code of a command, as a shell would begin it."""
    if words[0] == "python":
        run_recipe(str(ROOT / words[1]), words[2:])
        return 0
    if words[1] == "table":
        words += ["--recipe", SMALL, "--rounds", "2", "--local-steps", "1"]
        words += [] if "--seeds" in words else ["--seeds", "0"]
    if "--round" in words:
        words[words.index("--round") + 1] = "2"
    if any(word.startswith("consistency:client=") for word in words):  # it has to take part
        words += ["--participation", "1"]
    if words[1:3] == ["analyze", "surface"]:  # a pass over the data for each point
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
    monkeypatch.setattr(table, "run_all", partial(make_few, read))
    monkeypatch.setattr(table, "start_server", lambda _: None)
    monkeypatch.setattr(code, "_parts", PARTS)
    words: list[str] = []
    for text in commands:
        words = [*(words if text.startswith("--") else []), *shlex.split(text)]
        assert run(words) == 0, f"{text}: {capsys.readouterr().err}"
        if "--figure" in words:
            assert Path(words[words.index("--figure") + 1]).stat().st_size
