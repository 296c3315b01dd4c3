"""The command `fl-lightning`. Its parts are imported when they run, so that --help is immediate."""

import sys
from collections.abc import Sequence
from functools import partial
from pkgutil import resolve_name
from signal import SIGINT

import fl_lightning
from fl_lightning.cli.text_cache import print_text
from fl_lightning.printing import ending_with_reader, print_any_character

USAGE = """\
usage: fl-lightning COMMAND ...

  run                           list the recipes
  run RECIPE [OPTIONS]          train with a recipe, named or given as a file;
                                --help shows its options
  table FILE [OPTIONS]          make the runs of a table, e.g. fedssg/table4,
                                and print it with the published numbers
  list                          list the algorithms by family, with their costs
  show ALGORITHM                explain an algorithm, its options and its terms
  compare RUN [RUN ...]         compare runs in a table or a figure
  analyze ANALYSIS RUN [RUN ...]
                                analyze trained models: hessian, surface,
                                interpolate, features, classes, clients
  partition [RECIPE] [OPTIONS]  show which client holds what, without training
  new KIND FILE                 write a file to begin with: an algorithm, a
                                callback, data or a recipe
  --version                     print the version"""


COMMANDS = {
    "run": "fl_lightning.cli.recipes:run",
    "table": "fl_lightning.lab.commands.table:main",
    "list": "fl_lightning.cli.algorithms:list_all",
    "show": "fl_lightning.cli.algorithms:show",
    "compare": "fl_lightning.lab.commands.compare:main",
    "analyze": "fl_lightning.lab.commands.analyze:main",
    "partition": "fl_lightning.lab.commands.partition:main",
    "new": "fl_lightning.cli.recipes:new",
}
"""The functions that run the commands."""


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command that `argv` names."""
    print_any_character()
    command, *rest = (sys.argv[1:] if argv is None else list(argv)) or ["--help"]
    try:
        with ending_with_reader():
            if command in COMMANDS:
                print_text([command, *rest], partial(_run, command, rest))
            elif command in ("-h", "--help"):
                print(USAGE)
            elif command == "--version":
                print(f"fl-lightning {fl_lightning.__version__}")
            else:
                print(f"error: there is no command {command!r}", file=sys.stderr)
                print(USAGE)
                raise SystemExit(2)
    except KeyboardInterrupt:  # also within an import
        raise SystemExit(128 + SIGINT) from None


def _run(command: str, argv: Sequence[str]) -> None:
    lists_recipes = command == "run" and (not argv or argv[0].startswith("-"))
    if sys.stderr and sys.stderr.isatty() and not lists_recipes and command != "new":
        print("loading torch ...", file=sys.stderr)
    resolve_name(COMMANDS[command])(argv)


if __name__ == "__main__":
    main()
