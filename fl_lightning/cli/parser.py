"""The command line of the recipes, made from signatures.

An option is a field of a dataclass (`--batch-size`), a choice (`--algorithm fedtoga`: one of
several functions), or a parameter of the chosen function (`--algorithm.rho 0.1`). Types, defaults
and help come from the signature and the docstring. `--config FILE` reads a YAML file of the same
names, which flags override. argparse instead of jsonargparse, which lacks short names in any order
of flags, errors of one line, and help for functions.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields
from functools import partial
from inspect import Parameter, isclass, signature
from typing import Any, NoReturn, get_type_hints

from docstring_parser import parse as parse_docstring

from fl_lightning.algorithms.registry import parameter_help
from fl_lightning.cli.argv import flag_of, last_value, normalized, values_of
from fl_lightning.cli.choices import Choice, find_function
from fl_lightning.cli.config_files import read_files
from fl_lightning.cli.converters import convert, is_option, metavar, nearest, shown
from fl_lightning.cli.error_messages import exit_with_error
from fl_lightning.distributed.launcher_env import is_first_rank
from fl_lightning.runs.chosen import Chosen

FIRST = "algorithm"
"""The choice that `--help` shows before everything else."""


@dataclass(frozen=True)
class Option:
    """An option; its name is spelled as in YAML, e.g. algorithm.first_participation."""

    name: str
    kind: Any
    default: Any
    help: str


@dataclass(frozen=True)
class _Selected:
    """The function selected for a choice, before its options are read."""

    name: str
    function: Callable[..., Any]
    options: list[Option]


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
        SystemExit: With one sentence, for anything that does not fit.
    """
    argv = normalized(argv)
    tables = {choice.table for choice in choices.values() if choice.table}
    config, rows = read_files(values_of(argv, "--config"), tables)
    names = {name: _selected_name(name, choice, argv, config) for name, choice in choices.items()}
    replaced = {name: _drop_replaced(name, choices[name], names[name], config) for name in names}
    selected = {name: _select(name, choice, names[name]) for name, choice in choices.items()}
    general = {
        title: [_from_field(f, group, defaults) for f in fields(group)]
        for title, group in groups.items()
    }
    every = [*general.values(), *(s.options for s in selected.values())]
    known = {option.name: option for options in every for option in options}
    for name, choice in choices.items():
        table = rows.get(choice.table, {})
        config |= _row(name, choices, names[name], table, known)
        if selected[name].options and names[name] not in table:
            _note_defaults(name, names[name], choice.table if table else "", replaced[name], config)
    for key in config:
        if key not in known and key not in choices:
            exit_with_error(f"the configuration has no option {key!r}{nearest(key, known)}")
    values = _parse_flags(argv, description, general, choices, selected, config)
    for name, value in values.items():
        if value is Parameter.empty:
            exit_with_error(f"{flag_of(name)} is needed: {known[name].help}")
    chosen = {
        name: Chosen(
            s.name, s.function, {o.name.partition(".")[2]: values[o.name] for o in s.options}
        )
        for name, s in selected.items()
    }
    return {o.name: values[o.name] for options in general.values() for o in options}, chosen


def _selected_name(
    name: str, choice: Choice, argv: Sequence[str], config: Mapping[str, Any]
) -> str:
    flag = last_value(argv, flag_of(name))
    return choice.known(str(config.get(name, choice.default)) if flag is None else flag)


def _drop_replaced(name: str, choice: Choice, selected: str, config: dict[str, Any]) -> str:
    """Remove a file's options of a function that a flag replaces; its name, if there are any."""
    configured = choice.known(str(config.get(name, selected)))
    options = [key for key in config if key.startswith(f"{name}.")]
    if configured == selected or not options:
        return ""
    for key in options:
        del config[key]
    return configured


def _select(name: str, choice: Choice, function_name: str) -> _Selected:
    function = find_function(name, choice, function_name)
    defaults = choice.defaults if function_name == choice.default else {}
    hints = get_type_hints(function.__init__ if isclass(function) else function)
    helps = parameter_help(function)
    options = []
    for p in signature(function).parameters.values():
        kind = hints.get(p.name, type(p.default))
        if is_option(kind) and p.name not in choice.filled_in:
            default = _typed(kind, defaults.get(p.name, p.default))
            options.append(Option(f"{name}.{p.name}", kind, default, helps.get(p.name, "")))
    return _Selected(function_name, function, options)


def _note_defaults(
    name: str, selected: str, table: str, replaced: str, config: Mapping[str, Any]
) -> None:
    """Say that a function has its own defaults, where the files have options for others alone."""
    if not is_first_rank() or any(key.startswith(f"{name}.") for key in config):
        return
    if replaced:
        print(f"the configuration's options are for {name} {replaced}: {selected} has its defaults")
    elif table:
        print(f"the configuration's {table} have no row for {selected}: it has its defaults")


def _row(
    name: str,
    choices: Mapping[str, Choice],
    function: str,
    table: Mapping[str, Any],
    known: Mapping[str, Option],
) -> dict[str, Any]:
    """The options that a table of the configuration has for a function."""
    choice = choices[name]
    for row, options in table.items():
        where = f"the configuration's {choice.table}"
        if row not in choice.functions:
            exit_with_error(f"{where}: there is no {name} {row!r}{nearest(row, choice.functions)}")
        if not isinstance({} if options is None else options, Mapping):
            exit_with_error(f"{where}.{row} maps option names to values, not {options!r}")
    own = table.get(function) or {}
    for option in own.keys() & choices.keys():
        exit_with_error(f"{choice.table}.{function} cannot choose {option}: give --{option}")
    qualified = {option: f"{name}.{option}" for option in own}
    return {q if q in known else option: own[option] for option, q in qualified.items()}


class ArgumentParser(argparse.ArgumentParser):
    """One whose errors are one sentence."""

    def error(self, message: str) -> NoReturn:
        """Leave with the sentence and exit code 2."""
        exit_with_error(message)


class _Formatter(argparse.HelpFormatter):
    """Keeps the lines of a recipe's docstring, and wraps the summaries of functions."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if "\n" in text else super()._fill_text(text, width, indent)


def _parse_flags(
    argv: Sequence[str],
    description: str,
    general: Mapping[str, Sequence[Option]],
    choices: Mapping[str, Choice],
    selected: Mapping[str, _Selected],
    config: Mapping[str, Any],
) -> dict[str, Any]:
    parser = ArgumentParser(
        usage="%(prog)s [options]",
        description=description,
        formatter_class=_Formatter,
        add_help=False,
        allow_abbrev=False,
    )
    order = sorted(choices, key=lambda name: name != FIRST)
    for name in order[:1]:
        _add_choice(parser, name, choices[name], selected[name], config)
    for title, options in general.items():
        group = parser.add_argument_group(title)
        if title == "options":
            group.add_argument("-h", "--help", action="help", help="show this help")
            group.add_argument("--config", metavar="FILE", help="YAML file of options or a preset")
        _add(group, options, config)
    for name in order[1:]:
        _add_choice(parser, name, choices[name], selected[name], config)
    parsed, unknown = parser.parse_known_args(argv)
    if unknown:
        unknown = _note_options_of_others(parser, argv, choices[FIRST], selected[FIRST])
    if unknown:
        flags = [flag for action in parser._actions for flag in action.option_strings]
        near = nearest(unknown[0].split("=")[0], flags)
        exit_with_error(f"there is no option {unknown[0]!r}{near}")
    return vars(parsed)


def _note_options_of_others(
    parser: ArgumentParser, argv: Sequence[str], choice: Choice, selected: _Selected
) -> list[str]:
    """Say which flags are of other algorithms, since a sweep gives all methods the same.

    Returns:
        The flags that no algorithm has.
    """
    options = {o.name for name in choice.functions for o in _select(FIRST, choice, name).options}
    options -= {o.name for o in selected.options}
    for option in options:
        parser.add_argument(flag_of(option), dest=option, nargs="?", default=Parameter.empty)
    parsed, unknown = parser.parse_known_args(argv)
    for option in sorted(options):
        if getattr(parsed, option) is not Parameter.empty and is_first_rank():
            print(f"note: {flag_of(option)} has no effect: it is not an option of {selected.name}")
    return unknown


def _add_choice(
    parser: ArgumentParser,
    name: str,
    choice: Choice,
    selected: _Selected,
    config: Mapping[str, Any],
) -> None:
    summary = parse_docstring(selected.function.__doc__ or "").short_description
    group = parser.add_argument_group(f"{name} {selected.name}", summary)
    text = f"one of {', '.join(choice.functions)}; or your own, file.py:function"
    group.add_argument(flag_of(name), dest=name, metavar="NAME", help=text, default=selected.name)
    _add(group, selected.options, config)


def _add(group: Any, options: Sequence[Option], config: Mapping[str, Any]) -> None:
    for option in options:
        default = option.default
        if option.name in config:
            try:
                default = convert(option.kind, config[option.name])
            except ValueError as error:
                exit_with_error(f"the configuration's {option.name}: {error}")
        switch: dict[str, Any] = {"nargs": "?", "const": True} if option.kind is bool else {}
        group.add_argument(
            flag_of(option.name),
            dest=option.name,
            default=default,
            type=partial(_read, option.kind),
            metavar=metavar(option.kind),
            help=f"{option.help} (default: {shown(default)})".replace("%", "%%"),
            **switch,
        )


def _read(kind: Any, text: str) -> Any:
    try:
        return convert(kind, text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _from_field(f: "Field[Any]", group: type, defaults: Mapping[str, Any]) -> Option:
    default = defaults.get(f.name, f.default)
    if default is MISSING:
        raise TypeError(f"{group.__name__}.{f.name} needs a default")
    kind = get_type_hints(group)[f.name]
    return Option(f.name, kind, _typed(kind, default), parameter_help(group).get(f.name, ""))


def _typed(kind: Any, default: Any) -> Any:
    """A default as it would be read, since config.yaml holds it: 2 epochs are 2.0."""
    return default if default is None or default is Parameter.empty else convert(kind, default)
