"""`fl-lightning list`: the algorithms by family, with their costs."""

import re
from collections.abc import Sequence
from textwrap import wrap

from torch import nn

from fl_lightning.algorithms.registry import FAMILIES, functions, summary
from fl_lightning.cli.arguments import ArgumentParser
from fl_lightning.core.algorithm import Algorithm
from fl_lightning.core.rehearsal import rehearse
from fl_lightning.core.vector import Layout
from fl_lightning.errors import UserError
from fl_lightning.models import mlp

LEGEND = """
up, down  models that a client sends and receives in a round
state     models that a client keeps between rounds
grads     gradient evaluations in a local step

fl-lightning show ALGORITHM explains one of them"""


def main(argv: Sequence[str]) -> None:
    """Print the list."""
    ArgumentParser("fl-lightning list", description=__doc__).parse_args(argv)
    print(text())


def text() -> str:
    """The list for a terminal of 80 columns."""
    lines = [_row("", ["up", "down", "state", "grads"])]
    for family in FAMILIES:
        lines.append(re.split("[.:;]", family.__doc__ or "")[0])
        for name, make in functions(family).items():
            first, *rest = wrap(_without_citation(name, summary(make)), 35)
            costs, gradients = costs_in_models(make())
            lines.append(_row(f"  {name:20}{first}", [*(n for n, _ in costs), str(gradients)]))
            lines += [f"{'':22}{line}" for line in rest]
        lines.append("")
    return "\n".join(lines) + LEGEND


def _row(text: str, numbers: Sequence[str]) -> str:
    up, down, state, gradients = numbers
    return f"{text:57}{up:>5}{down:>6}{state:>6}{gradients:>6}"


def _without_citation(name: str, summary: str) -> str:
    """The summary of an algorithm, without its paper and its name."""
    plain = re.sub(r" \([^()]*\d{4}[^()]*\)", "", summary).rstrip(".")
    title, _, description = plain.partition(": ")
    return description if title.lower().replace("-", "_") == name else plain


def costs_in_models(algorithm: Algorithm) -> tuple[list[tuple[str, list[str]]], int]:
    """What a client sends, receives and keeps, in models and by name, and its gradients a step."""
    network: nn.Module = mlp(100, 10, (100,))  # wide enough that single numbers round away
    if any(term.needs_lora or term.keeps == "lora_B" for term in algorithm.terms):
        network = nn.ModuleDict({name: nn.Linear(100, 100) for name in ("lora_A", "lora_B")})
    layout = Layout(network)
    try:
        c = rehearse(algorithm, layout, layout.read(network)).cost
    except UserError as error:
        error.add_note("with the perceptron whose costs are shown")
        raise
    body = [] if algorithm.trains is None else [str(algorithm.trains)]
    received = [name for name in c.receives if name != "model"]
    numbers = c.uplink, c.downlink, c.client_state
    names = body, [*body, *received], list(c.keeps)
    costs = [(f"{n / layout.size:.2g}", list(n_)) for n, n_ in zip(numbers, names, strict=True)]
    return costs, c.gradients
