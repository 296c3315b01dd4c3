"""The installed recipes and presets. Imports nothing heavy, since `fl-lightning run` lists them."""

import ast
import runpy
import sys
from collections.abc import Sequence
from os.path import expanduser
from pathlib import Path
from textwrap import fill

_PACKAGE = Path(__file__).parents[1]

FOLDER = next(
    folder for folder in (_PACKAGE / "recipes", _PACKAGE.parent / "recipes") if folder.is_dir()
)
"""In the installed package, or next to it in a clone."""


def recipes() -> dict[str, Path]:
    """The files of the installed recipes by name."""
    return {file.stem: file for file in sorted(FOLDER.glob("[!_]*.py"))}


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


def preset(name: str) -> Path:
    """The file of that name, or the installed preset, such as `fedssg/table4`."""
    installed = FOLDER / "presets" / name
    candidates = Path(expanduser(name)), installed, installed.with_name(f"{installed.name}.yaml")
    return next((file for file in candidates if file.is_file()), Path(name))
