"""`fl-lightning show`: an algorithm's docstring, options, terms and costs."""

from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from inspect import getdoc
from textwrap import fill
from typing import get_type_hints

import torch

from fl_lightning.algorithms.registry import ALGORITHMS, sections
from fl_lightning.cli.arguments import NEEDED, ArgumentParser, options_of
from fl_lightning.cli.choices import Choice, find_function
from fl_lightning.cli.error_messages import exit_with_message
from fl_lightning.cli.list_algorithms import costs_in_models
from fl_lightning.core.algorithm import Algorithm
from fl_lightning.core.constraints import Range, metadata
from fl_lightning.core.curves import Curve
from fl_lightning.core.term import Term, with_inner
from fl_lightning.core.weighting import in_words
from fl_lightning.errors import UserError
from fl_lightning.runs.chosen import Chosen, wrong_result
from fl_lightning.runs.converters import is_option, metavar, shown


def main(argv: Sequence[str]) -> None:
    """Print the explanation of the algorithm that `argv` names."""
    parser = ArgumentParser("fl-lightning show", description=__doc__)
    parser.add_argument("algorithm", help="a name of fl-lightning list, or file.py:function")
    with exit_with_message():
        name = Choice(ALGORITHMS, "").known(parser.parse_args(argv).algorithm)
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
