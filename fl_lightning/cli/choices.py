"""Options whose value is one of several functions.

Of a choice, such as the algorithm, each parameter is an option: `--algorithm.rho 0.1`. A component,
a callback, loss, metric or sampler, is one text: `sharpness:rho=0.1,every=5`,
`file.py:Name:key=value`.
"""

import re
import runpy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from inspect import isfunction
from pathlib import Path
from textwrap import wrap
from typing import Any, cast

from fl_lightning import models
from fl_lightning.algorithms import modifiers
from fl_lightning.algorithms.registry import ALGORITHMS, functions
from fl_lightning.callbacks import CALLBACKS
from fl_lightning.callbacks.metrics import METRICS
from fl_lightning.cli.arguments import NEEDED, Option, options_of
from fl_lightning.core.docstrings import summary
from fl_lightning.core.losses import LOSSES
from fl_lightning.data import CropFlip, folder_sources, row_sources, schemes, sources
from fl_lightning.data.image_folder import domain_folder, image_folder
from fl_lightning.errors import UserError, nearest
from fl_lightning.federation.client_selection import SAMPLERS
from fl_lightning.runs.chosen import Chosen, joined, known_name
from fl_lightning.runs.code import search_first
from fl_lightning.runs.converters import convert, is_option, metavar, shown, with_curves

SIZES = "inputs", "classes", "channels", "size", "vocabulary"
"""Parameters of a model that follow from the data."""

SOURCES = {
    name: source
    for module in (sources, folder_sources, row_sources)
    for name, source in functions(module).items()
} | {"image_folder": image_folder, "domain_folder": domain_folder}
"""The data sources of the package by name."""

MODELS = {name: model for name, model in vars(models).items() if isfunction(model)}
"""The models of the package by name."""

Default = str | Mapping[str, Any]
"""A default as in YAML: a name, or {"name": "fedsam", "rho": 0.1}."""


@dataclass(frozen=True)
class Choice:
    """An option whose value is one of several functions, each with options of its own.

    Attributes:
        functions: The functions by name.
        default: The name taken when none is given.
        defaults: Options of the default function that differ from its signature.
        filled_in: Parameters that the program fills in, which are no options.
    """

    functions: Mapping[str, Callable[..., Any]]
    default: str
    defaults: Mapping[str, Any] = field(default_factory=dict)
    filled_in: frozenset[str] = frozenset()


def choices(
    data: Sequence[Callable[..., Any]],
    models: Sequence[Callable[..., Any]],
    algorithm: Default,
    partition: Default,
    augment: CropFlip | None,
) -> dict[str, Choice]:
    """The choices of a recipe by name; its first data source and model are the defaults.

    The data sources and models of the package are known in every recipe.
    """
    own_data, own_models = ({f.__name__: f for f in offered} for offered in (data, models))
    crop_flip = {"name": "crop_flip", **asdict(augment)} if augment else "none"
    return {
        "data": _choice(own_data | SOURCES | own_data, "root"),
        "model": _choice(own_models | MODELS | own_models, *SIZES),
        "augment": _choice({"none": nothing, "crop_flip": CropFlip}, default=crop_flip),
        "algorithm": _choice(ALGORITHMS, default=algorithm),
        "partition": _choice(
            functions(schemes), "y", "clients", "seed", "domains", default=partition
        ),
        **{name: _choice(makers) for name, makers in modifiers.PARTS.items()},
    }


def nothing() -> None:
    """No augmentation."""


def _choice(
    functions: Mapping[str, Callable[..., Any]], *filled_in: str, default: Default = ""
) -> Choice:
    options = {"name": default} if isinstance(default, str) else dict(default)
    name = options.pop("name") or next(iter(functions))
    return Choice(functions, name, options, frozenset(filled_in))


@dataclass(frozen=True)
class Selected:
    """The function selected for a choice, before its options are read."""

    kind: str
    choice: Choice
    name: str
    function: Callable[..., Any]
    options: list[Option]

    @property
    def full_options(self) -> list[Option]:
        """The options by the names that files have, such as algorithm.rho."""
        return [replace(o, name=f"{self.kind}.{o.name}") for o in self.options]


def select(kind: str, choice: Choice, name: str) -> Selected:
    """The function of that name with its options.

    Raises:
        UserError: In one sentence, if there is none, or nothing gives one of its parameters.
    """
    defaults = choice.defaults if name == choice.default else {}
    several = joined(choice.functions, name) if kind in modifiers.JOINED else None
    function = several or find_function(kind, choice.functions, name)
    own = [o for o in options_of(function, defaults) if o.name not in choice.filled_in]
    taken = [o for o in own if is_option(o.kind)]
    if unknown := [o.name for o in own if o.default is NEEDED and o not in taken]:
        parts = ", ".join(sorted(choice.filled_in))
        rename = f"rename it to one of {parts}, " if parts else ""
        raise UserError(
            f"{name} has a parameter {unknown[0]!r} that nothing fills in: {rename}annotate it as "
            "int, float, bool or str, or give it a default"
        )
    if kind in ("algorithm", *modifiers.PARTS):
        taken = [replace(o, kind=with_curves(o.kind)) for o in taken]
    return Selected(kind, choice, name, function, taken)


def find_function(
    kind: str, known: Mapping[str, Callable[..., Any]], name: str
) -> Callable[..., Any]:
    """The function of that name, or the one that `file.py:function` names."""
    if name in known:
        return known[name]
    path, _, function = name.partition(":")
    if not function and Path(path).suffix != ".py":
        near = nearest(name.lower().replace("-", "_"), known)
        raise UserError(f"there is no {kind} {name!r}{near} (or name your own as file.py:function)")
    if not Path(path).is_file():
        raise UserError(f"there is no file {path!r}: --{kind} takes file.py:function")
    search_first(Path(path).resolve().parent)
    content = {n: f for n, f in runpy.run_path(path, run_name="own").items() if callable(f)}
    if not hasattr(content.get(function), "__name__"):  # a partial has no name or type hints
        defined = [n for n, f in content.items() if getattr(f, "__module__", "") == "own"]
        wrong = f"defines no function {function!r}" if function else "is a file: name its function"
        raise UserError(f"{path} {wrong}{nearest(function, defined)}")
    return cast(Callable[..., Any], content[function])


RUN_PARTS = "train", "test", "validation", "partition", "own_tests", "task", "folder"
"""Parameters of a callback that the run fills in."""

SAMPLER_PARTS = "fraction", "sizes", "may_be_empty", "num_clients", "seed", "round", "federation"
"""Parameters of a sampler that the run or the round fills in."""

COMPONENTS = {
    "callback": Choice(CALLBACKS, "none", filled_in=frozenset(RUN_PARTS)),
    "loss": Choice(LOSSES, "cross_entropy", filled_in=frozenset({"out", "y"})),
    "metric": Choice(METRICS, "accuracy", filled_in=frozenset({"classes"})),
    "sampling": Choice(SAMPLERS, "fixed", filled_in=frozenset(SAMPLER_PARTS)),
}


def read_component(kind: str, text: str) -> Chosen:
    """The callback, loss, metric or sampler that a text names, with its options.

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
    return select(kind, COMPONENTS[kind], known_name(COMPONENTS[kind].functions, name)), given


def _hanging(name: str, text: str, width: int) -> list[str]:
    return wrap(f"  {name:<{width}}{text}", 79, subsequent_indent=" " * (width + 2))
