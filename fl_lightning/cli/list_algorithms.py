"""The algorithms, and what each sends, keeps and computes."""

from collections.abc import Iterable

from docstring_parser import parse

from fl_lightning import models
from fl_lightning.algorithms.registry import ALGORITHMS
from fl_lightning.core.cost import cost
from fl_lightning.core.vector import Layout
from fl_lightning.report import Table

HEADINGS = "--algorithm", "method", "sends", "receives", "keeps", "gradients"
EXPLANATION = (
    "Counted by running each method's terms: how many models a client sends, receives and keeps between rounds (in "
    "brackets the names of the server's and the client's states), and gradient evaluations in one local step."
)


def list_algorithms() -> Table:
    """One row an algorithm, at the default options."""
    network = models.mlp(100, 10, (100,))  # wide enough that single numbers round away
    layout = Layout(network)
    w, found = layout.read(network), list[tuple[str, ...]]()

    def count(numbers: int, names: Iterable[str]) -> str:
        told = ", ".join(name for name in names if name != "model")
        return f"{numbers / layout.size:.2g}" + (f" ({told})" if told else "")

    for name, make in ALGORITHMS.items():
        algorithm = make()
        c, part = cost(algorithm, layout, w), () if algorithm.trains_head else ("body",)
        counts = (
            count(c.uplink, part),
            count(c.downlink, (*part, *c.receives)),
            count(c.client_state, c.keeps),
        )
        summary = parse(make.__doc__ or "").short_description or ""
        found.append((f"`{name}`", summary, *counts, str(c.gradients)))
    return Table(HEADINGS, found, EXPLANATION)
