"""The command `fl-lightning`. Its parts are imported when they run, so that --help is immediate."""

import os
import sys
from collections.abc import Sequence

import fl_lightning

USAGE = """\
usage: fl-lightning COMMAND ...

  fl-lightning run                    list the recipes
  fl-lightning run RECIPE [OPTIONS]   train with a recipe, given by name or as a file;
                                      --help shows its options
  fl-lightning table FILE [OPTIONS]   make the runs of a table, such as fedssg/table4,
                                      and print it with the published numbers
  fl-lightning list                   list the algorithms by family, with their costs
  fl-lightning show ALGORITHM         explain an algorithm, its options and its terms
  fl-lightning compare RUN [RUN ...]  compare runs in a table or a figure
  fl-lightning analyze ANALYSIS RUN [RUN ...]
                                      analyze trained models: hessian, surface, interpolate,
                                      features, classes, clients
  fl-lightning partition [RECIPE] [OPTIONS]
                                      show which client holds what, without training
  fl-lightning --version"""


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command that `argv` names."""
    command, *rest = (sys.argv[1:] if argv is None else list(argv)) or ["--help"]
    try:
        _run(command, rest)
        sys.stdout.flush()
    except BrokenPipeError:  # as under `| head`; the interpreter would flush again when it exits
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(command: str, argv: list[str]) -> None:
    if command in ("-h", "--help"):
        print(USAGE)
    elif command == "--version":
        print(f"fl-lightning {fl_lightning.__version__}")
    elif command == "run":
        from fl_lightning.cli.recipes import list_recipes, run_recipe

        run_recipe(argv[0], argv[1:]) if argv else print(list_recipes())
    elif command == "table":
        from fl_lightning.sweep import command as table

        table.main(argv)
    elif command == "list":
        from fl_lightning.cli import list_algorithms

        list_algorithms.main(argv)
    elif command == "show":
        from fl_lightning.cli import show_algorithm

        show_algorithm.main(argv)
    elif command == "compare":
        from fl_lightning.cli.compare import compare

        compare(argv)
    elif command == "analyze":
        from fl_lightning.cli.analyze import analyze

        analyze(argv)
    elif command == "partition":
        from fl_lightning.cli.partition import show_partitions

        show_partitions(argv)
    else:
        print(f"error: there is no command {command!r}", file=sys.stderr)
        print(USAGE)
        raise SystemExit(2)


if __name__ == "__main__":
    main()
