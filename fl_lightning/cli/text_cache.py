"""Texts of `list`, `show` and `--help`, kept on disk: making one imports torch for seconds.

A text is made again after every change of what it follows from: the sources of this package, the
versions of Python, torch and lightning, `python -OO`, and the width of the terminal.
"""

import os
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout, suppress
from hashlib import sha256
from importlib.metadata import version
from io import StringIO
from pathlib import Path
from shutil import get_terminal_size

from fl_lightning.cli import recipes

FIXED = re.compile(
    r"list|show [\w-]+|(list|table|compare|partition|analyze( \w+)?) (-h|--help)"
    r"|run (?P<recipe>\w+)( --(?!config)\w+ \w+)* (-h|--help)"
)
"""Command lines whose texts follow from this package alone, and from no file of the user."""


def has_fixed_text(argv: Sequence[str]) -> bool:
    """Whether the command line prints a text that can be kept."""
    found = FIXED.fullmatch(" ".join(argv))
    if not (found and found["recipe"]):
        return bool(found)
    recipe = recipes.recipes().get(found["recipe"])
    return bool(recipe and "Experiment(" in recipe.read_text())  # others may know no --help


def print_text(argv: Sequence[str], command: Callable[[], object]) -> None:
    """Run a command; if its text can be kept, print the kept one instead.

    Raises:
        SystemExit: If the command fails; nothing is kept then.
    """
    caches = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))
    if not (has_fixed_text(argv) and caches.is_absolute()):  # without a home it stays ~
        command()
        return
    file, key = caches / "fl-lightning" / "_".join(argv), _digest()
    with suppress(OSError, UnicodeError):
        kept, _, text = file.read_text("utf-8").partition("\n")
        if kept == key:
            print(text, end="")
            return
    printed = StringIO()
    try:
        with redirect_stdout(printed):
            command()
    except SystemExit as end:
        if end.code:
            raise
    finally:
        print(printed.getvalue(), end="")
    aside = file.with_name(f"{file.name}.{os.getpid()}")
    with suppress(OSError):  # without a cache, it is made again
        file.parent.mkdir(parents=True, exist_ok=True)
        aside.write_text(f"{key}\n{printed.getvalue()}", "utf-8")
        aside.replace(file)


def _digest() -> str:
    """A digest of all that texts follow from."""
    python, columns = (sys.version, sys.flags.optimize), get_terminal_size().columns
    digest = sha256(repr((python, version("torch"), version("lightning"), columns)).encode())
    package, beside = Path(__file__).parents[1], recipes.FOLDER.parent  # also in a clone
    for folder in (package, beside / "callbacks", beside / "recipes"):
        for source in sorted(folder.rglob("*.py")):
            digest.update(source.read_bytes())
    return digest.hexdigest()
