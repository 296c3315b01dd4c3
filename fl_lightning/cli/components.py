"""Callbacks, losses and metrics as text: `sharpness:rho=0.1,every=5`, `file.py:Name:key=value`."""

import re
from collections.abc import Sequence
from textwrap import wrap

from fl_lightning.algorithms.registry import summary
from fl_lightning.callbacks import CALLBACKS
from fl_lightning.callbacks.metrics import METRICS
from fl_lightning.cli.arguments import NEEDED
from fl_lightning.cli.choices import Choice, Selected, select
from fl_lightning.core.losses import LOSSES
from fl_lightning.errors import UserError, nearest
from fl_lightning.runs.chosen import Chosen
from fl_lightning.runs.converters import convert, metavar, shown

RUN_PARTS = "train", "test", "validation", "partition", "own_tests", "task", "folder"
"""Parameters of a callback that the run fills in."""

CHOICES = {
    "callback": Choice(CALLBACKS, "none", filled_in=frozenset(RUN_PARTS)),
    "loss": Choice(LOSSES, "cross_entropy", filled_in=frozenset({"out", "y"})),
    "metric": Choice(METRICS, "accuracy", filled_in=frozenset({"classes"})),
}


def read_component(kind: str, text: str) -> Chosen:
    """The callback, loss or metric that a text names, with its options.

    Raises:
        UserError: In one sentence, if there is none, or no such option.
    """
    selected, given = _split(kind, text)
    name, kinds = selected.name, {o.name: o.kind for o in selected.options}
    values = {o.name: o.default for o in selected.options}
    for option, value in given.items():
        if option not in kinds:
            raise UserError(f"{name} has no option {option!r}{nearest(option, kinds)}")
        try:
            values[option] = convert(kinds[option], value)
        except ValueError as error:
            raise UserError(f"--{kind} {name}: {option}: {error}") from None
    if missing := [option for option, value in values.items() if value is NEEDED]:
        raise UserError(f"--{kind} {name} needs {missing[0]}: add :{missing[0]}=...")
    return Chosen(name, selected.function, values)


def component_text(chosen: Chosen) -> str:
    """The text that `read_component` reads, with every option."""
    options = ",".join(f"{option}={shown(value)}" for option, value in chosen.options.items())
    return f"{chosen.name}:{options}" if options else chosen.name


def callback_help(texts: Sequence[str]) -> str:
    """A line for each callback, and the options of those that these texts name."""
    width = max(map(len, CALLBACKS)) + 2
    lines = [line for name, c in CALLBACKS.items() for line in _hanging(name, summary(c), width)]
    for selected, _ in (_split("callback", text) for text in texts if text != "none"):
        lines += ["", f"options of {selected.name}:"]
        for o in selected.options:
            text = f"{o.help} (default: {shown(o.default)})"
            lines += _hanging(f"{o.name}={metavar(o.kind)}", text, width)
    return "\n".join(lines)


def _split(kind: str, text: str) -> tuple[Selected, dict[str, str]]:
    """The function that a text names, and its options as text. A value may have commas."""
    name, _, options = text.partition(":")
    if name.endswith(".py"):
        function, _, options = options.partition(":")
        name = f"{name}:{function}"
    pairs = (pair.partition("=") for pair in re.split(r",(?=[\w-]+=)", options) if pair)
    given = {option.replace("-", "_"): value for option, _, value in pairs}
    return select(kind, CHOICES[kind], CHOICES[kind].known(name)), given


def _hanging(name: str, text: str, width: int) -> list[str]:
    return wrap(f"  {name:<{width}}{text}", 79, subsequent_indent=" " * (width + 2))
