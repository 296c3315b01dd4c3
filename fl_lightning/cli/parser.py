"""The command line of the recipes, made from signatures.

An option is a field of a dataclass (`--batch-size`), a *part* (`--algorithm fedtoga`: one of
several functions), or a parameter of the chosen function (`--algorithm.rho 0.1`). Types, defaults
and help come from the signature and the docstring. `--config FILE` reads a YAML file of the same
names, which flags override. argparse and not jsonargparse, whose parser cannot hold both
`--algorithm` and `--algorithm.rho`.
"""

import argparse
import os
import runpy
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from functools import cache
from inspect import Parameter, signature
from pathlib import Path
from typing import Any, NoReturn, cast, get_type_hints

from docstring_parser import parse as parse_docstring

from fl_lightning.algorithms.registry import parameter_help
from fl_lightning.cli.argv import last_value, normalised, values_of
from fl_lightning.cli.config_files import read_files
from fl_lightning.cli.converters import convert, is_option, metavar, nearest, shown
from fl_lightning.cli.error_messages import exit_with_error
from fl_lightning.distributed.launcher_env import is_first_rank


@dataclass(frozen=True)
class Part:
    """An option whose value is one of several functions, with that function's own options.

    Attributes:
        choices: The functions by name.
        default: The name taken when none is given.
        defaults: Options of the default function that differ from its signature.
        given: Parameters that the program fills in, which are no options.
        table: A key of the YAML file under which each choice may have options, its own and general
            ones, that count when it is chosen: `methods: {fedsam: {rho: 0.01, lr_decay: 0.998}}`.
    """

    choices: Mapping[str, Callable[..., Any]]
    default: str
    defaults: Mapping[str, Any] = field(default_factory=dict)
    given: frozenset[str] = frozenset()
    table: str = ""


@dataclass(frozen=True)
class Chosen:
    """What was chosen for a part: calling it calls the function with the chosen options."""

    name: str
    function: Callable[..., Any]
    options: Mapping[str, Any]

    def __call__(self, *args: Any, **extra: Any) -> Any:
        """Call the function."""
        return self.function(*args, **extra, **self.options)

    @property
    def file(self) -> Path | None:
        """The file of the user's in which the function lies; None if it is the program's own."""
        return Path(self.name.partition(":")[0]) if ":" in self.name else None

    def wants(self, parameter: str) -> bool:
        """Whether the function has a parameter of this name."""
        return parameter in signature(self.function).parameters


@dataclass(frozen=True)
class _Option:
    name: str  # as in YAML, e.g. algorithm.first_participation
    kind: Any
    default: Any
    help: str

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")


def parse(
    options: Sequence[type],
    parts: Mapping[str, Part],
    argv: Sequence[str],
    description: str = "",
    **defaults: Any,
) -> tuple[dict[str, Any], dict[str, Chosen]]:
    """Read the command line.

    Args:
        options: Dataclasses; their fields are options, their docstrings' Attributes the help.
        parts: The parts by name.
        argv: The arguments, without the program.
        description: Shown by `--help`.
        **defaults: Defaults that differ from the dataclasses.

    Returns:
        The fields' values, and what was chosen for each part.

    Raises:
        SystemExit: With one sentence, for anything that does not fit.
    """
    argv = normalised(argv)
    config, tables = read_files(
        values_of(argv, "--config"), {part.table for part in parts.values() if part.table}
    )
    named, left = dict[str, str](), dict[str, str]()
    for name, part in parts.items():
        configured, flagged = (
            _known(str(config.get(name, part.default)), part),
            last_value(argv, f"--{name}"),
        )
        named[name] = configured if flagged is None else _known(flagged, part)
        its = {key for key in config if key.startswith(f"{name}.")}
        if (
            its and name in config and named[name] != configured
        ):  # the file's options are of another function
            left[name], config = (
                configured,
                {key: value for key, value in config.items() if key not in its},
            )
    functions = {name: _function(name, part, named[name]) for name, part in parts.items()}
    own = [_from_field(f, group, defaults) for group in options for f in fields(group)]
    parts_options = {
        name: _from_function(
            name, part, functions[name], part.defaults if named[name] == part.default else {}
        )
        for name, part in parts.items()
    }
    every = {o.name: o for o in [*own, *(o for group in parts_options.values() for o in group)]}
    for name, part in parts.items():
        config |= _row(name, parts, named[name], tables.get(part.table, {}), every)
    for key in config:
        if key not in every and key not in parts:
            exit_with_error(f"the configuration has no option {key!r}{nearest(key, every)}")
    parser = _Parser(
        usage="%(prog)s [options]",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--config", metavar="FILE", help="YAML file of options, which flags override"
    )
    _add(parser.add_argument_group("options"), own, config)
    for name, part in parts.items():
        summary = parse_docstring(functions[name].__doc__ or "").short_description
        group = parser.add_argument_group(f"{name} {named[name]}", summary)
        choices = ", ".join(part.choices)
        group.add_argument(
            f"--{name}",
            dest=name,
            metavar="NAME",
            help=f"one of: {choices}; or your own, file.py:function",
            default=named[name],
        )
        _add(group, parts_options[name], config)
    parsed, unknown = parser.parse_known_args(argv)
    if unknown:
        flags = [o.flag for o in every.values()] + [f"--{name}" for name in parts]
        exit_with_error(
            f"there is no option {unknown[0]!r}{nearest(unknown[0].split('=')[0], flags)}"
        )
    values = vars(parsed)
    for name, value in values.items():
        if value is Parameter.empty:
            exit_with_error(f"{every[name].flag} is needed: {every[name].help}")
    for name in (name for name, group in parts_options.items() if group):
        _tell_of_defaults(
            name, parts[name].table, named[name], tables.get(parts[name].table, {}), left, config
        )
    chosen = {
        name: Chosen(
            named[name], functions[name], {o.name.split(".", 1)[1]: values[o.name] for o in group}
        )
        for name, group in parts_options.items()
    }
    return {o.name: values[o.name] for o in own}, chosen


_helps = cache(parameter_help)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        exit_with_error(message)


def _add(group: Any, options: Sequence[_Option], config: Mapping[str, Any]) -> None:
    for option in options:
        default = option.default
        if option.name in config:
            try:
                default = convert(option.kind, config[option.name])
            except ValueError as error:
                exit_with_error(f"the configuration's {option.name}: {error}")
        flag: dict[str, Any] = {"nargs": "?", "const": True} if option.kind is bool else {}
        text = f"{option.help} (default: {shown(default)})".replace("%", "%%")
        group.add_argument(
            option.flag,
            dest=option.name,
            default=default,
            type=_converter(option.kind),
            metavar=metavar(option.kind),
            help=text,
            **flag,
        )


def _converter(kind: Any) -> Callable[[str], Any]:
    def converter(text: str) -> Any:
        try:
            return convert(kind, text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return converter


def _from_field(f: "Field[Any]", options: type, defaults: Mapping[str, Any]) -> _Option:
    kind, help = get_type_hints(options)[f.name], _helps(options).get(f.name, "")
    default = defaults.get(f.name, f.default)
    if default is MISSING:
        raise TypeError(f"{options.__name__}.{f.name} needs a default")
    return _Option(f.name, kind, _typed(kind, default), help)


def _function(name: str, part: Part, given: str) -> Callable[..., Any]:
    """The function of that name, or the one that `file.py:function` names."""
    if given in part.choices:
        return part.choices[given]
    path, colon, function = given.partition(":")
    if not colon:
        near = nearest(given.lower().replace("-", "_"), part.choices)
        exit_with_error(f"there is no {name} {given!r}{near}, or name your own as file.py:function")
    if not Path(path).is_file():
        exit_with_error(f"there is no file {path!r}, in which --{name} {given} should lie")
    sys.path.insert(0, str(Path(path).resolve().parent))
    try:
        own = runpy.run_path(path, run_name="own")
    except Exception as error:
        if os.environ.get("FL_LIGHTNING_TRACEBACK"):
            raise
        exit_with_error(
            f"{path} ends with {type(error).__name__}: {error} (FL_LIGHTNING_TRACEBACK=1 shows where)"
        )
    if not callable(own.get(function)):
        there = [
            name
            for name, value in own.items()
            if callable(value) and getattr(value, "__module__", "") == "own"
        ]
        exit_with_error(f"{path} has no function {function!r}{nearest(function, there)}")
    return cast(Callable[..., Any], own[function])


def _from_function(
    part: str, choice: Part, function: Callable[..., Any], own: Mapping[str, Any]
) -> list[_Option]:
    helps, hints = _helps(function), get_type_hints(function)
    kinds = {
        p.name: hints.get(p.name, type(p.default)) for p in signature(function).parameters.values()
    }
    return [
        _Option(
            f"{part}.{p.name}",
            kind := kinds[p.name],
            _typed(kind, own.get(p.name, p.default)),
            helps.get(p.name, ""),
        )
        for p in signature(function).parameters.values()
        if is_option(kinds[p.name]) and p.name not in choice.given
    ]


def _typed(kind: Any, default: Any) -> Any:
    """A default as it would be read: 2 epochs are 2.0, or a run's configuration would differ from its repetition's."""
    return default if default is None or default is Parameter.empty else convert(kind, default)


def _row(
    name: str,
    parts: Mapping[str, Part],
    choice: str,
    table: Mapping[str, Any],
    every: Mapping[str, _Option],
) -> dict[str, Any]:
    """The options that a table of the configuration has for a choice."""
    part = parts[name]
    for row, options in table.items():
        if row not in part.choices:
            exit_with_error(
                f"the configuration's {part.table}: there is no {name} {row!r}{nearest(row, part.choices)}"
            )
        if not isinstance({} if options is None else options, Mapping):
            exit_with_error(
                f"the configuration's {part.table}.{row} must map option names to values, but is {options!r}"
            )
    for option in (table.get(choice) or {}).keys() & parts.keys():
        exit_with_error(
            f"the configuration's {part.table}.{choice} cannot choose {option}: give --{option} beside the file"
        )
    return {
        f"{name}.{option}" if f"{name}.{option}" in every else option: value
        for option, value in (table.get(choice) or {}).items()
    }


def _tell_of_defaults(
    name: str,
    table: str,
    choice: str,
    rows: Mapping[str, Any],
    left: Mapping[str, str],
    config: Mapping[str, Any],
) -> None:
    """Say that a choice has its own defaults, where the files have options for others alone."""
    if not is_first_rank() or choice in rows or any(key.startswith(f"{name}.") for key in config):
        return
    if name in left:
        print(
            f"the configuration's options are for {name} {left[name]}: {choice} has its own, or what flags say"
        )
    elif rows:
        print(
            f"the configuration's {table} have no row for {choice}: it has its own defaults, or what flags say"
        )


def _known(name: str, part: Part) -> str:
    """The choice of that name, however the papers spell it: FedLESAM-S is fedlesam_s."""
    lower = name.lower().replace("-", "_")
    return lower if lower in part.choices else name
