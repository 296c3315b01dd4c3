"""Options whose value is one of several functions: data, model, algorithm, partition and others."""

import runpy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from inspect import isfunction
from pathlib import Path
from typing import Any, cast

from fl_lightning import models
from fl_lightning.algorithms import modifiers
from fl_lightning.algorithms.registry import ALGORITHMS, functions
from fl_lightning.cli.arguments import NEEDED, Option, options_of
from fl_lightning.data import CropFlip, folder_sources, row_sources, schemes, sources
from fl_lightning.data.image_folder import domain_folder, image_folder
from fl_lightning.errors import UserError, nearest
from fl_lightning.runs.code import search_first
from fl_lightning.runs.converters import is_option, with_curves

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

    def known(self, name: str) -> str:
        """The function's name, also when spelled as in a paper: FedLESAM-S is fedlesam_s."""
        lower = name.lower().replace("-", "_")
        return lower if lower in self.functions else name


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
    function = find_function(kind, choice.functions, name)
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
