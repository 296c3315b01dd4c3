"""`fl-lightning list`: the algorithms, and what each sends, keeps and computes."""

import sys
from collections.abc import Iterable, Sequence

from docstring_parser import parse
from rich.console import Console
from rich.table import Table

from fl_lightning import models
from fl_lightning.catalogue import algorithms
from fl_lightning.cost import cost
from fl_lightning.vector import Layout

HEADINGS = "--algorithm", "method", "sends", "receives", "keeps", "gradients"
EXPLANATION = (
    "Counted by running each method's terms: how many models a client sends, receives and keeps between rounds (in "
    "brackets the names of the server's and the client's states), and gradient evaluations in one local step."
)
USAGE = "fl-lightning list shows the algorithms; train with a recipe of the repository: fabric run recipes/digits.py"


def rows() -> list[tuple[str, ...]]:
    """One row an algorithm, in the order of `HEADINGS`, at the default options."""
    network = models.mlp(100, 10, (100,))  # wide enough that single numbers round away
    layout = Layout(network)
    w, found = layout.read(network), list[tuple[str, ...]]()

    def count(numbers: int, names: Iterable[str]) -> str:
        told = ", ".join(name for name in names if name != "model")
        return f"{numbers / layout.size:.2g}" + (f" ({told})" if told else "")

    for name, make in algorithms().items():
        algorithm = make()
        c, part = cost(algorithm, layout, w), () if algorithm.trains_head else ("body",)
        counts = count(c.uplink, part), count(c.downlink, (*part, *c.receives)), count(c.client_state, c.keeps)
        found.append((name, parse(make.__doc__ or "").short_description or "", *counts, str(c.gradients)))
    return found


def markdown() -> str:
    """The table as the README prints it."""
    lines = ["| " + " | ".join(HEADINGS) + " |", "|---" * len(HEADINGS) + "|"]
    lines += [f"| `{name}` | {' | '.join(rest)} |" for name, *rest in rows()]
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command."""
    argv = sys.argv[1:] if argv is None else argv
    if list(argv) != ["list"]:
        print(USAGE)
        raise SystemExit(0 if not argv or argv[0] in ("-h", "--help") else 2)
    if not sys.stdout.isatty():  # no width to fit into
        print(f"{markdown()}\n\n{EXPLANATION}")
        return
    table = Table(caption=EXPLANATION)
    for heading in HEADINGS:
        table.add_column(heading, no_wrap=heading == HEADINGS[0])
    for row in rows():
        table.add_row(*row)
    Console().print(table)


if __name__ == "__main__":
    main()
