"""Options that were given and would not count beside the others: refused, for a user thinks that they do."""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from functools import partial
from inspect import Parameter, signature
from typing import Any

from fl_lightning.algorithms import modifiers
from fl_lightning.cli.options import Options
from fl_lightning.cli.parser import Chosen
from fl_lightning.core.algorithm import Algorithm

Choices = Mapping[str, Chosen]


def check_unused_options(given: Collection[str], o: Options, chosen: Choices) -> None:
    """Compare the options that the command line names with the others; files may hold some for another choice.

    Raises:
        ValueError: If one of them does not count.
    """
    if "local_epochs" in given and o.local_steps is not None:
        raise ValueError(
            "--local-steps takes the place of --local-epochs: give one of them, or --local-steps none with it"
        )
    if (
        "parallel_clients" in given
        and o.executor == "sequential"
        and o.parallel_clients not in (1, Options.parallel_clients)
    ):
        raise ValueError(
            f"--executor sequential trains one client at a time: leave --parallel-clients {o.parallel_clients} away, or --executor stacked"
        )
    if "finetune_lr" in given and o.finetune_lr is not None and not o.finetune_epochs:
        raise ValueError(
            "--finetune-lr is the rate of the fine-tuning that --finetune-epochs asks for: give that too, as "
            "--finetune-epochs 1,5"
        )


def unused_option_notes(
    given: Collection[str], o: Options, chosen: Choices, width: int
) -> Iterator[str]:
    """What the command line names and does not count here, though it may elsewhere.

    Args:
        given: The options that the command line names.
        o: All options.
        chosen: The choices.
        width: How many clients train at once.
    """
    if "parallel_clients" in given and o.executor == "auto" and o.parallel_clients != width:
        yield "--parallel-clients does not count: --executor auto trains clients one after another here"
    if "data_dir" in given and not chosen["data"].wants("root"):
        yield f"--data-dir does not count: {chosen['data'].name} reads no files"


def check_unused_coefficients(
    given: Collection[str], chosen: Choices, made_of: Callable[[Choices], Algorithm]
) -> None:
    """Find what the command line says of the algorithm or an addition, and what makes no other algorithm of it.

    Args:
        given: The options that the command line names.
        chosen: The choices.
        made_of: The algorithm that choices make.

    Raises:
        ValueError: If the algorithm is the same with such an option's default.
    """
    made = made_of(chosen)
    for part in ("algorithm", *modifiers.PARTS):
        choice = chosen[part]
        if choice.file:  # a function of the user's may do other things with it
            continue
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
    """Whether two algorithms surely are one."""
    try:
        return bool(_attributes(made) == _attributes(make_other()))
    except Exception:  # the default does not go with the other options
        return False


def _attributes(algorithm: Algorithm) -> dict[str, Any]:
    """What an algorithm is made of; a `partial`, which has no equality, as what it is made of."""
    return {
        name: (value.func, value.args, value.keywords) if isinstance(value, partial) else value
        for name, value in vars(algorithm).items()
    }
