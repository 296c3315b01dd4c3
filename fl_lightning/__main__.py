"""`fl-lightning list` shows the algorithms, `fl-lightning compare` the runs."""

import sys
from collections.abc import Sequence

from fl_lightning.cli.compare import compare
from fl_lightning.cli.list_algorithms import list_algorithms

USAGE = """\
fl-lightning list                 the algorithms, and what each sends, keeps and computes
fl-lightning compare RUN [RUN ..] runs as a table, and with --figure FILE as curves; compare --help shows all of it
train with a recipe of the repository: fabric run recipes/digits.py"""


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command."""
    command, *rest = (sys.argv[1:] if argv is None else list(argv)) or [""]
    if command == "compare":
        compare(rest)
    elif command == "list" and not rest:
        list_algorithms().show()
    else:
        print(USAGE)
        raise SystemExit(0 if command in ("", "-h", "--help") else 2)


if __name__ == "__main__":
    main()
