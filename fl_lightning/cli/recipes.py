"""The installed recipes, presets and templates. Imports nothing heavy, as `run` lists recipes."""

import ast
import runpy
import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from contextlib import redirect_stdout
from contextvars import ContextVar
from os.path import expanduser
from pathlib import Path
from shlex import quote
from textwrap import fill, indent
from typing import Any

from fl_lightning.errors import UserError

FOLDER = next(
    parent / "recipes" for parent in Path(__file__).parents[1:] if (parent / "recipes").is_dir()
)
"""In the installed package, or next to it in a clone."""

PRESETS = FOLDER / "presets"

TEMPLATES = Path(__file__).parents[1] / "templates"


def recipes() -> dict[str, Path]:
    """The files of the installed recipes by name."""
    return {file.stem: file for file in sorted(FOLDER.glob("[!_]*.py"))}


def run(argv: Sequence[str]) -> None:
    """Run the recipe that `argv` names first, or list all."""
    named = argv and argv[0] not in ("-h", "--help")
    run_recipe(argv[0], argv[1:]) if named else print(list_recipes())


def list_recipes() -> str:
    """One line for each recipe: its name and the first line of its docstring."""
    lines = ["fl-lightning run RECIPE [OPTIONS], where RECIPE is a file or one of:", ""]
    for name, file in recipes().items():
        summary = (ast.get_docstring(ast.parse(file.read_text())) or "").partition("\n")[0]
        lines.append(fill(f"  {name:<18}{summary}", 80, subsequent_indent=" " * 20))
    return "\n".join([*lines, "", "fl-lightning run RECIPE --help shows the options of a recipe"])


def run_recipe(name: str, argv: Sequence[str]) -> None:
    """Run a recipe as `python NAME.py ARGV...` does.

    `sys.argv` names the recipe's file, not this command: run folders are named after it, and
    Lightning starts it again for every further rank.
    """
    file = recipes().get(name, Path(name))
    if not file.is_file():
        print(f"error: there is no recipe {name!r}\n", file=sys.stderr)
        print(list_recipes())
        raise SystemExit(2)
    sys.argv = [str(file.resolve()), *argv]
    sys.path.insert(0, str(file.resolve().parent))
    runpy.run_path(sys.argv[0], run_name="__main__")


COLLECTED: ContextVar[list[Any] | None] = ContextVar("COLLECTED", default=None)
"""Where an `Experiment` puts itself instead of running, while `experiment_of` waits for it."""


def experiment_of(recipe: str, argv: Sequence[str]) -> Any:
    """The `Experiment` that `fl-lightning run RECIPE ARGV...` would run.

    Raises:
        UserError: If the recipe makes no experiment.
    """
    collected: list[Any] = []
    before, token = (sys.argv, list(sys.path)), COLLECTED.set(collected)
    try:
        with redirect_stdout(None):
            run_recipe(recipe, argv)
    finally:
        COLLECTED.reset(token)
        sys.argv, sys.path[:] = before
    if not collected:
        raise UserError(f"{recipe} makes no experiment: name a recipe that trains clients")
    return collected[0]


def presets() -> list[str]:
    """The names of the installed presets, such as `fedssg/table4`."""
    files = sorted(PRESETS.rglob("*.yaml"))
    return [file.relative_to(PRESETS).with_suffix("").as_posix() for file in files]


def preset(name: str) -> Path:
    """The file of that name, or the installed preset, such as `fedssg/table4`."""
    installed = PRESETS / name
    candidates = Path(expanduser(name)), installed, installed.with_name(f"{installed.name}.yaml")
    return next((file for file in candidates if file.is_file()), Path(name))


def new(argv: Sequence[str]) -> None:
    """Write a file to begin with, which runs as it stands."""
    templates = {file.stem: file for file in TEMPLATES.glob("[!_]*.py")}
    parser = ArgumentParser("fl-lightning new", description=new.__doc__)
    parser.add_argument("kind", choices=sorted(templates))
    parser.add_argument("file", type=Path, help="such as mine.py")
    o = parser.parse_args(argv)
    if o.file.suffix != ".py":  # options name functions of such files alone
        parser.error(f"{o.file} is no Python file: name it {o.file.with_suffix('.py')}")
    text = templates[o.kind].read_text().replace(f"{o.kind}.py", quote(str(o.file)))
    try:
        with o.file.open("x") as file:
            file.write(text)
    except FileExistsError:
        parser.error(f"{o.file} is there already: name a new file")
    except OSError as error:
        parser.error(f"{o.file} cannot be written: {error.strerror}")
    summary, _, commands = (ast.get_docstring(ast.parse(text)) or "").partition("\n\n")
    print(f"{o.file}: {summary}\n\n{indent(commands, '    ')}")
