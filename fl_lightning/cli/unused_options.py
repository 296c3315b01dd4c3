"""Notes on options that were given and have no effect with the others."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from functools import partial
from inspect import Parameter, signature
from typing import Any

from fl_lightning.algorithms import modifiers
from fl_lightning.cli.arguments import flag_of
from fl_lightning.core.algorithm import Algorithm
from fl_lightning.errors import UserError
from fl_lightning.runs.chosen import Chosen
from fl_lightning.runs.options import Options, without_effect
from fl_lightning.training import parts


def unused_option_notes(
    given: Collection[str], o: Options, chosen: Mapping[str, Chosen], sends: bool = True
) -> Iterator[str]:
    """One line for each option of the command line, `given`, that has no effect here.

    Options of files may be for other choices. `sends` is whether clients send anything.
    """
    yield from (f"note: {sentence}" for sentence in without_effect(given, o))
    if "data_dir" in given and not chosen["data"].wants("root"):
        yield f"note: --data-dir has no effect: {chosen['data'].name} reads no files"
    if "server_lr" in given and not sends:
        yield "note: --server-lr has no effect: clients send nothing"
    for kind in ("algorithm", *modifiers.PARTS):
        for option, value in chosen[kind].options.items():
            if f"{kind}.{option}" in given and not _has_effect(kind, option, chosen):
                flag = flag_of(f"{kind}.{option}")
                yield f"note: {flag} {value} has no effect with the other options"


def refuse_unused_options(given: Collection[str], chosen: Mapping[str, Chosen]) -> None:
    """Refuse general options that the command line names and the algorithm cannot use."""
    fixes = {
        "clip_norm": "clips=True",
        "weighting": "weight=uniform or weight=by_size",
        "server_lr": "terms without ExactAggregation",
    }
    for option in sorted(parts.unused_by(parts.algorithm(chosen)).intersection(given)):
        fix = fixes.get(option, f"a `local` that needs {option}")
        raise UserError(
            f"{chosen['algorithm'].name} does not use {flag_of(option)}: omit it, or give the "
            f"Algorithm {fix}"
        )


def _has_effect(kind: str, option: str, chosen: Mapping[str, Chosen]) -> bool:
    """Whether the option's default would make another algorithm."""
    choice = chosen[kind]
    default = signature(choice.function).parameters[option].default
    if choice.file or default in (Parameter.empty, choice.options[option]):
        return True  # a user-defined function may use it otherwise
    plain = replace(choice, options={**choice.options, option: default})
    try:
        other = parts.algorithm({**chosen, kind: plain})
    except Exception:  # the default does not fit the other options
        return True
    return bool(_attributes(parts.algorithm(chosen)) != _attributes(other))


def _attributes(algorithm: Algorithm) -> dict[str, Any]:
    """The parts of an algorithm; a `partial`, which has no equality, as its own parts."""
    return {
        name: (value.func, value.args, value.keywords) if isinstance(value, partial) else value
        for name, value in vars(algorithm).items()
    }
