"""`fl-lightning list` and `fl-lightning show`: the algorithms with their costs, and one of them."""

import re
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from inspect import getdoc
from textwrap import fill, wrap
from typing import get_type_hints

import torch
from torch import nn

from fl_lightning.algorithms.registry import ALGORITHMS, FAMILIES, functions
from fl_lightning.cli.arguments import NEEDED, ArgumentParser, options_of
from fl_lightning.cli.choices import find_function
from fl_lightning.cli.error_messages import exit_with_message
from fl_lightning.core.algorithm import Algorithm
from fl_lightning.core.constraints import Range, metadata
from fl_lightning.core.curves import Curve
from fl_lightning.core.docstrings import sections, summary
from fl_lightning.core.rehearsal import rehearse
from fl_lightning.core.term import Term, with_inner
from fl_lightning.core.vector import Layout
from fl_lightning.core.weighting import in_words
from fl_lightning.errors import UserError
from fl_lightning.models import mlp
from fl_lightning.runs.chosen import Chosen, known_name, wrong_result
from fl_lightning.runs.converters import is_option, metavar, shown

LEGEND = """
up, down  models that a client sends and receives in a round
state     models that a client keeps between rounds
grads     gradient evaluations in a local step

fl-lightning show ALGORITHM explains one of them"""


def list_all(argv: Sequence[str]) -> None:
    """Print the algorithms by family, with their costs."""
    ArgumentParser("fl-lightning list", description=list_all.__doc__).parse_args(argv)
    lines = [_row("", ["up", "down", "state", "grads"])]
    for family in FAMILIES:
        lines.append(re.split("[.:;]", family.__doc__ or "")[0])
        for name, make in functions(family).items():
            first, *rest = wrap(_without_citation(name, summary(make)), 35)
            costs, gradients = costs_in_models(make())
            lines.append(_row(f"  {name:20}{first}", [*(n for n, _ in costs), str(gradients)]))
            lines += [f"{'':22}{line}" for line in rest]
        lines.append("")
    print("\n".join(lines) + LEGEND)


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


def show(argv: Sequence[str]) -> None:
    """Print an algorithm's docstring, options, terms and costs."""
    parser = ArgumentParser("fl-lightning show", description=show.__doc__)
    parser.add_argument("algorithm", help="a name of fl-lightning list, or file.py:function")
    with exit_with_message():
        name = known_name(ALGORITHMS, parser.parse_args(argv).algorithm)
        make = find_function("algorithm", ALGORITHMS, name)
        if needed := [o.name for o in options_of(make) if o.default is NEEDED]:
            raise UserError(f"{name} has no default for {needed[0]}: give it one, to be shown")
        print(explanation(name, make))


def explanation(name: str, make: Callable[..., Algorithm]) -> str:
    """The text for a terminal of 80 columns, on an algorithm by its name and function.

    Raises:
        UserError: If the function makes none, or a term has a mistake.
    """
    chosen, doc = Chosen(name, make, {}), sections(make)
    algorithm = chosen()
    if not isinstance(algorithm, Algorithm):
        raise UserError(wrong_result(chosen, "an Algorithm", algorithm))
    terms = [*with_inner(algorithm.terms)]
    paragraphs = doc["Description"].split("\n\n")
    lines = ["\n\n".join(fill(" ".join(part.split()), 80) for part in paragraphs)]
    for title in ("References", "Released code"):
        if title in doc:
            lines += ["", title, _indented(doc[title], 2)]
    lines += ["", f"Options, as --algorithm {name} --algorithm.NAME VALUE"]
    hints = get_type_hints(make, include_extras=True)
    for o in (o for o in options_of(make) if is_option(o.kind)):
        said = metadata(hints.get(o.name))
        limits = "".join(f"; {m.says}" for m in said if isinstance(m, Range))
        lines.append(f"  {o.name} {metavar(o.kind)}")
        lines.append(_indented(f"{o.help} (default: {shown(o.default)}{limits})"))
    lines += ["", "Terms at the default options, from the inside out" if terms else "No terms"]
    for term in terms:
        summary, *_ = (getdoc(type(term)) or "").split("\n\n")
        title = f"  {type(term).__name__}{_values(term)}"
        lines += [fill(title, 80, subsequent_indent="    "), _indented(summary)]
    (sent, received, kept), gradients = costs_in_models(algorithm)
    lines += ["", "A client, in a round"]
    for verb, (number, states) in (("sends", sent), ("receives", received), ("keeps", kept)):
        named = f" ({', '.join(states)})" if states else ""
        lines.append(f"  {verb:9} {number} model(s){named}")
    lines.append(f"  {'evaluates':9} {gradients} gradient{'s' * (gradients > 1)} a step")
    if algorithm.combining is None:
        lines.append(f"  is {in_words(algorithm.weight)} in the mean update (--weighting)")
    else:
        lines.append("  counts as much as any other in what the server combines")
    own = algorithm.server([torch.zeros(1)]).param_groups[0]["lr"]
    lr = algorithm.server_lr or f"{own:g}"
    lines += ["", f"The server's learning rate is {lr} (--server-lr)"]
    return "\n".join(lines)


def _values(term: Term) -> str:
    """The coefficients of a term, as `(rho=0.1)`."""
    names: list[str] = [field.name for field in fields(term)] if is_dataclass(term) else []
    values = {name: getattr(term, name) for name in names}
    listed = ", ".join(
        f"{k}={v}" for k, v in values.items() if isinstance(v, int | float | str | Curve)
    )
    return f"({listed})" if listed else ""


def _indented(text: str, by: int = 6) -> str:
    indent = " " * by
    return fill(" ".join(text.split()), 80, initial_indent=indent, subsequent_indent=indent)
