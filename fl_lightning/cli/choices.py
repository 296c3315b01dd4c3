"""What a recipe's user chooses by name: data, model, augmentation, algorithm, partition, and what is added."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from fl_lightning.algorithms import modifiers
from fl_lightning.algorithms.registry import ALGORITHMS, functions
from fl_lightning.cli.parser import Part
from fl_lightning.data import CropFlip, schemes

SHAPE = "inputs", "classes", "channels", "size"
"""What a model may ask to be told of the data."""

Default = str | Mapping[str, Any]
"""What is chosen by default, as in YAML: a name, or {"name": "fedsam", "rho": 0.1}."""


def parts(
    data: Sequence[Callable[..., Any]],
    models: Sequence[Callable[..., Any]],
    algorithm: Default,
    partition: Default,
    augment: CropFlip | None,
) -> dict[str, Part]:
    """The parts of the command line by name; the first of the data sources and of the models is the default."""
    return {
        "data": _part({f.__name__: f for f in data}, data[0].__name__, "root"),
        "model": _part({f.__name__: f for f in models}, models[0].__name__, *SHAPE),
        "augment": _part({"none": no_augmentation, "crop_flip": CropFlip}, _augmentation(augment)),
        "algorithm": replace(_part(ALGORITHMS, algorithm), table="methods"),
        "partition": _part(functions(schemes), partition, "y", "clients", "seed", "domains"),
        **{
            name: _part(choices := functions(module), next(iter(choices)))
            for name, module in modifiers.PARTS.items()
        },
    }


def no_augmentation() -> None:
    """Images as they are."""


def _augmentation(augment: CropFlip | None) -> Default:
    return "none" if augment is None else {"name": "crop_flip", **asdict(augment)}


def _part(choices: Mapping[str, Callable[..., Any]], default: Default, *given: str) -> Part:
    spec = {"name": default} if isinstance(default, str) else dict(default)
    return Part(choices, spec.pop("name"), spec, frozenset(given))
