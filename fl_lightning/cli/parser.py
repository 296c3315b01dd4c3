"""The command line of the recipes, made from signatures.

An option is a field of a dataclass (`--batch-size`), a choice (`--algorithm fedtoga`: one of
several functions), or a parameter of the chosen function (`--algorithm.rho 0.1`). Types, defaults
and help come from the signature and the docstring. `--config FILE` reads a YAML file of the same
names, which flags override. argparse instead of jsonargparse, which lacks short names in any order
of flags, errors of one line, and help for functions.

Options that have no effect are noted, and refused where the algorithm cannot use them.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from inspect import Parameter, signature
from typing import Any

from fl_lightning.algorithms import modifiers
from fl_lightning.cli.arguments import (
    NEEDED,
    ArgumentParser,
    Option,
    add_options,
    flag_of,
    last_value,
    normalized,
    options_of,
    values_of,
    with_source,
)
from fl_lightning.cli.choices import Choice, Selected, callback_help, select
from fl_lightning.cli.config_files import TABLE_KEYS, read_files
from fl_lightning.core.algorithm import Algorithm
from fl_lightning.core.docstrings import summary
from fl_lightning.distributed.launch_options import is_first_rank
from fl_lightning.errors import UserError, nearest
from fl_lightning.runs.chosen import Chosen, known_name
from fl_lightning.runs.options import Options, without_effect
from fl_lightning.training import parts

FIRST = "algorithm"
"""The choice that `--help` shows before everything else."""


def parse(
    groups: Mapping[str, type],
    choices: Mapping[str, Choice],
    argv: Sequence[str],
    description: str = "",
    **defaults: Any,
) -> tuple[dict[str, Any], dict[str, Chosen]]:
    """Read the command line.

    Args:
        groups: Dataclasses by the title of their group in `--help`. Their fields are options, the
            Attributes of their docstrings the help.
        choices: The choices by name.
        argv: The arguments, without the program.
        description: Shown by `--help`.
        **defaults: Defaults that differ from the dataclasses.

    Returns:
        The fields' values, and what was chosen for each choice.

    Raises:
        UserError: In one sentence, for anything that does not fit.
    """
    argv = with_source(normalized(argv))
    config, methods = read_files(values_of(argv, "--config"))
    selected, replaced = {}, {}
    for name, choice in choices.items():
        in_files = known_name(choice.functions, str(config.get(name, choice.default)))
        flags = values_of(argv, flag_of(name))
        flag = "+".join(flags if name in modifiers.JOINED else flags[-1:])
        s = select(name, choice, known_name(choice.functions, flag) if flags else in_files)
        if any(option.name == "name" for option in s.options):
            raise UserError(
                f"{s.name} has a parameter 'name', as files call the {name} itself: rename it"
            )
        selected[name] = s
        of_files = [key for key in config if key.startswith(f"{name}.")]
        if name in config and of_files and selected[name].name != in_files:
            replaced[name] = in_files
            for key in of_files:  # of a function that a flag replaces
                del config[key]
    general = {title: options_of(group, defaults) for title, group in groups.items()}
    every = [*general.values(), *(s.full_options for s in selected.values())]
    known = {option.name: option for options in every for option in options}
    config |= _row(selected[FIRST], choices, methods, known)
    for name, s in selected.items():
        _note_defaults(s, methods if name == FIRST else {}, replaced.get(name, ""), config)
    for key in config:
        if key not in known and key not in choices:
            near = nearest(key, (*known, *TABLE_KEYS, "methods"))
            raise UserError(f"the configuration has no option {key!r}{near}")
    values = _parse_flags(argv, description, general, selected, config)
    for name, value in values.items():
        if value is NEEDED:
            raise UserError(f"{flag_of(name)} is needed: {known[name].help}".removesuffix(": "))
    chosen = {
        name: Chosen(s.name, s.function, {o.name: values[f"{name}.{o.name}"] for o in s.options})
        for name, s in selected.items()
    }
    return {o.name: values[o.name] for options in general.values() for o in options}, chosen


def _note_defaults(
    s: Selected, methods: Mapping[str, Any], replaced: str, config: Mapping[str, Any]
) -> None:
    """Say that a function has its own defaults if the files have options for other ones only."""
    named = s.name in methods or any(key.startswith(f"{s.kind}.") for key in config)
    if named or not s.options or not is_first_rank():
        return
    if replaced:
        print(f"the configuration's options are for {s.kind} {replaced}: {s.name} has its defaults")
    elif methods:
        print(f"the configuration's methods have no row for {s.name}: it has its defaults")


def _row(
    s: Selected, choices: Collection[str], methods: Mapping[str, Any], known: Collection[str]
) -> dict[str, Any]:
    """The options that the files have for the chosen method."""
    where, functions = "the configuration's methods", s.choice.functions
    for row, options in methods.items():
        if row not in functions and ":" not in str(row):  # which names a function in a file
            raise UserError(f"{where}: there is no {s.kind} {row!r}{nearest(row, functions)}")
        if not isinstance(options, Mapping | None):
            raise UserError(f"{where}.{row} maps option names to values, not {options!r}")
    own = {str(option): value for option, value in (methods.get(s.name) or {}).items()}
    for option in own.keys() & choices:
        raise UserError(f"methods.{s.name} cannot choose {option}: give --{option}")
    qualified = {option: f"{s.kind}.{option}" for option in own}
    return {o if o in known and q not in known else q: own[o] for o, q in qualified.items()}


def _parse_flags(
    argv: Sequence[str],
    description: str,
    general: Mapping[str, Sequence[Option]],
    selected: Mapping[str, Selected],
    config: Mapping[str, Any],
) -> dict[str, Any]:
    parser = ArgumentParser(usage="%(prog)s [options]", description=description, add_help=False)
    _add_choice(parser, selected[FIRST], config)
    for title, options in general.items():
        about = callback_help(values_of(argv, "--callback")) if title == "callbacks" else None
        group = parser.add_argument_group(title, about)
        if title == "options":
            group.add_argument("-h", "--help", action="help", help="show this help")
            group.add_argument("--config", metavar="FILE", help="YAML file of options or a preset")
        add_options(group, options, config)
    for kind, other in selected.items():
        if kind != FIRST:
            _add_choice(parser, other, config)
    parsed, unknown = parser.parse_known_args(argv)
    flags = [flag for action in parser._actions for flag in action.option_strings]
    if unknown:
        unknown = _note_options_of_others(parser, argv, selected.values())
    if unknown:
        near = nearest(unknown[0].split("=")[0], flags)
        raise UserError(f"there is no option {unknown[0]!r}{near}")
    return vars(parsed)


def _note_options_of_others(
    parser: ArgumentParser, argv: Sequence[str], selected: Iterable[Selected]
) -> list[str]:
    """Note flags that belong to other functions than the chosen ones.

    A sweep gives the same flags to all methods. But if no flag names the function of a choice, it
    has probably been forgotten, and options of the choice are mistakes.

    Returns:
        The flags that belong to no function, and such mistakes.
    """
    others = dict[str, str]()
    for s in selected:
        if s.kind != FIRST and last_value(argv, flag_of(s.kind)) in (None, "none"):
            continue
        every = (select(s.kind, s.choice, name) for name in s.choice.functions)
        names = {option.name for other in every for option in other.full_options}
        others |= dict.fromkeys(names - {option.name for option in s.full_options}, s.name)
    for name in others:
        parser.add_argument(flag_of(name), dest=name, nargs="?", default=NEEDED)
    parsed, unknown = parser.parse_known_args(argv)
    for name, chosen in sorted(others.items()):
        if getattr(parsed, name) is not NEEDED and is_first_rank():
            print(f"note: {flag_of(name)} has no effect: it is not an option of {chosen}")
    return unknown


def _add_choice(parser: ArgumentParser, s: Selected, config: Mapping[str, Any]) -> None:
    group = parser.add_argument_group(f"{s.kind} {s.name}", summary(s.function))
    text = f"one of {', '.join(s.choice.functions)}; or your own, file.py:function"
    text += ". It can be repeated." if s.kind in modifiers.JOINED else ""
    group.add_argument(flag_of(s.kind), dest=s.kind, metavar="NAME", help=text, default=s.name)
    add_options(group, s.full_options, config)


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
