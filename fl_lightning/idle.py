"""Options that were given and would not count beside the others: refused, for a user thinks that they do."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from inspect import Parameter, signature
from typing import Any

from fl_lightning import add_ons
from fl_lightning.algorithm import Algorithm
from fl_lightning.cli import Chosen
from fl_lightning.options import Options
from fl_lightning.term import Term

Choices = Mapping[str, Chosen]


def refuse_idle_options(given: Collection[str], o: Options, chosen: Choices) -> None:
    """Compare the options that the command line names with the others; files may hold some for another choice.

    Raises:
        ValueError: If one of them does not count.
    """
    if "local_epochs" in given and o.local_steps is not None:
        raise ValueError(
            "--local-steps takes the place of --local-epochs: give one of them, or --local-steps none with it"
        )
    if "width" in given and o.executor == "sequential" and o.width > 1:
        raise ValueError(
            f"--executor sequential trains one client at a time: leave --width {o.width} away, or --executor stacked"
        )
    if "data_dir" in given and not chosen["data"].wants("root"):
        raise ValueError(
            f"{chosen['data'].name} reads nothing in --data-dir: leave it away; data of your own are given it if their "
            "function has a parameter root"
        )


def refuse_idle_coefficients(given: Collection[str], chosen: Choices, made_of: Callable[[Choices], Algorithm]) -> None:
    """Find what the command line says of the algorithm or an addition, and what makes no other algorithm of it.

    Args:
        given: The options that the command line names.
        chosen: The choices.
        made_of: The algorithm that choices make.

    Raises:
        ValueError: If the algorithm is the same with such an option's default.
    """
    made = made_of(chosen)
    for part in ("algorithm", *add_ons.PARTS):
        choice = chosen[part]
        for name, value in choice.options.items():
            default = signature(choice.function).parameters[name].default
            if f"{part}.{name}" in given and default is not Parameter.empty and default != value:
                plain = replace(choice, options={**choice.options, name: default})
                if _same(made, partial(made_of, {**chosen, part: plain})):
                    raise ValueError(
                        f"--{part}.{name.replace('_', '-')} {value} changes nothing beside the other options as they "
                        f"are: leave it away, or change those (--{part} {choice.name} --help tells what they mean)"
                    )


def _same(made: Algorithm, make_other: Callable[[], Algorithm]) -> bool:
    """Whether two algorithms surely are one; what users make of terms need not be comparable."""
    try:
        return bool(_made_of(made) == _made_of(make_other()))
    except Exception:
        return False


def _made_of(thing: Any) -> Any:
    """What an algorithm, a term or a `partial`, which has no equality, is made of."""
    if isinstance(thing, partial):
        return thing.func, thing.args, thing.keywords
    if isinstance(thing, Algorithm | Term):  # not its own equality: a dataclass overlooks what is no field
        return type(thing), {name: _made_of(value) for name, value in vars(thing).items()}
    return tuple(map(_made_of, thing)) if isinstance(thing, tuple) else thing
