"""`fl-lightning new`: write a file to begin with, which runs as it stands."""

import ast
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path
from shlex import quote
from textwrap import indent

from fl_lightning.cli.error_messages import exit_with_error

TEMPLATES = Path(__file__).parents[1] / "templates"


def main(argv: Sequence[str]) -> None:
    """Copy a template, with the new file's name in its docstring, and print that."""
    kinds = sorted(file.stem for file in TEMPLATES.glob("[!_]*.py"))
    parser = ArgumentParser("fl-lightning new", description=__doc__)
    parser.add_argument("kind", choices=kinds)
    parser.add_argument("file", type=Path, help="such as mine.py")
    o = parser.parse_args(argv)
    text = (TEMPLATES / f"{o.kind}.py").read_text().replace(f"{o.kind}.py", quote(str(o.file)))
    try:
        with o.file.open("x") as file:
            file.write(text)
    except FileExistsError:
        exit_with_error(f"{o.file} is there already: name a new file")
    except OSError as error:
        exit_with_error(f"{o.file} cannot be written: {error.strerror}")
    summary, _, commands = (ast.get_docstring(ast.parse(text)) or "").partition("\n\n")
    print(f"{o.file}: {summary}\n\n{indent(commands, '    ')}")
