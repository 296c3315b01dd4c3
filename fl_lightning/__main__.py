"""The command `fl-lightning`. Its parts are imported when they run, so that --help is immediate."""

import sys
from collections.abc import Sequence
from functools import partial
from importlib import import_module

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
    "run": "fl_lightning.cli.recipes",
    "table": "fl_lightning.lab.commands.table",
    "list": "fl_lightning.cli.list_algorithms",
    "show": "fl_lightning.cli.show_algorithm",
    "compare": "fl_lightning.lab.commands.compare",
    "analyze": "fl_lightning.lab.commands.analyze",
    "partition": "fl_lightning.lab.commands.partition",
    "new": "fl_lightning.cli.new_file",
}
"""Modules whose `main` runs a command."""


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command that `argv` names."""
    print_any_character()
    command, *rest = (sys.argv[1:] if argv is None else list(argv)) or ["--help"]
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


def _run(command: str, argv: Sequence[str]) -> None:
    lists_recipes = command == "run" and (not argv or argv[0].startswith("-"))
    if sys.stderr and sys.stderr.isatty() and not lists_recipes and command != "new":
        print("loading torch ...", file=sys.stderr)
    import_module(COMMANDS[command]).main(argv)


if __name__ == "__main__":
    main()
