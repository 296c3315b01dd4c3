r"""Formulas of docstrings and pages, as MathML: no scripts, no fonts, nothing from other hosts.

A formula has rows `label: LaTeX`; further lines of a row are indented more. Parts of a row between
`\quad` are expressions of their own, which a narrow screen shows below each other. A row `as: name`
stands for the rows of another method. `\mean_S` and `\mean_N` are the means over the cohort and
over all clients, and `\unit{v}` is v over its norm.
"""

import re
from collections.abc import Callable, Iterator
from html import escape
from textwrap import dedent
from typing import Any

from fl_lightning import Algorithm
from fl_lightning.algorithms.registry import ALGORITHMS
from fl_lightning.core.docstrings import sections
from fl_lightning.core.weighting import by_size, uniform

MACROS = {
    r"\\mean_S": r"\\frac{1}{M} \\sum_{i \\in S}",
    r"\\mean_N": r"\\frac{1}{N} \\sum_{i=1}^{N}",
    r"\\unit\{((?:[^{}]|\{[^{}]*\})*)\}": r"\\frac{\1}{\\|\1\\|}",
}

STEP = r"step: w \gets w - \eta\, g(w)"
SERVER = {
    by_size: r"server: w^{t+1} = w^t + \sum_{i \in S} p_i\, (u_i - w^t)",
    uniform: r"server: w^{t+1} = w^t + \mean_S (u_i - w^t)",
}
"""FedAvg's step and server, which depends on the aggregation weights."""


def of_method(make: Callable[..., Algorithm]) -> str:
    """The formula of a method; a step and a server that its docstring leaves out are FedAvg's."""
    lines = [*_lines(make)]
    labels = [line.partition(":")[0] for line in lines]
    if labels[first := labels.count("start")] == "server":
        lines.insert(first, STEP)
    if "server" not in labels:
        lines.append(SERVER[make().weight])
    return "\n".join(lines)


def _lines(make: Callable[..., Algorithm]) -> Iterator[str]:
    """The rows of a docstring."""
    for line in re.split(r"\n(?=\S)", dedent(sections(make)["Formula"]).strip()):
        label, _, name = line.partition(": ")
        yield from _lines(ALGORITHMS[name]) if label == "as" else [line]


def rows(text: str) -> list[tuple[str, list[str]]]:
    """The rows of a formula: label and expressions."""
    lines = (" ".join(line.split()) for line in re.split(r"\n(?=\S)", dedent(text).strip()))
    pairs = (line.partition(": ") for line in lines)
    return [(label, re.split(r",?\s*\\quad\s*", latex)) for label, _, latex in pairs]


def html(text: str) -> str:
    """The formula as a list of labels and expressions."""
    items = "".join(
        f"<dt>{escape(label)}</dt><dd>{''.join(mathml(part, 'block') for part in parts)}</dd>"
        for label, parts in rows(text)
    )
    return f'<dl class="formula">{items}</dl>'


def inline(markdown: str) -> str:
    """The page with each `$LaTeX$` as mathematics."""
    return re.sub(r"\$([^$\n]+)\$", lambda found: mathml(found[1], "inline"), markdown)


def mathml(latex: str, display: str) -> str:
    """An expression in MathML, for a line of its own (`block`) or for a text (`inline`)."""
    from latex2mathml.converter import convert  # installed with the documentation's tools only

    for macro, meaning in MACROS.items():
        latex = re.sub(macro, meaning, latex)
    found = re.sub(r"<mo>([a-z]{2,})</mo>", r"<mi>\1</mi>", convert(latex, display=display))
    relation = "<mo>&#x0223C;</mo>"
    return found.replace("<mi>&#x0007E;</mi>", relation)  # max(a), not max (a); ~ as a relation


def fence(source: str, *_: Any, **__: Any) -> str:
    """A code block named `formula` as a formula; for pymdownx.superfences."""
    return html(source)
