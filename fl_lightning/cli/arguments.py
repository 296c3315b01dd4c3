"""Options of a program, from signatures and docstrings, and as a command line names them."""

import argparse
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from inspect import Parameter, isclass, signature
from itertools import pairwise
from os.path import expanduser
from pathlib import Path
from textwrap import fill
from typing import Any, NoReturn, get_args, get_origin, get_type_hints

from fl_lightning.cli.error_messages import exit_with_error
from fl_lightning.core.docstrings import parameter_help
from fl_lightning.errors import UserError
from fl_lightning.runs.converters import convert, metavar, shown

NEEDED = Parameter.empty
"""The default of an option that has none."""


@dataclass(frozen=True)
class Option:
    """An option; its name is spelled as in YAML, e.g. algorithm.first_participation."""

    name: str
    kind: Any
    default: Any
    help: str


def options_of(function: Callable[..., Any], defaults: Mapping[str, Any] = {}) -> list[Option]:
    """The parameters of a function, or the fields of a dataclass, as options."""
    try:
        hints = get_type_hints(function.__init__ if isclass(function) else function)
    except (NameError, SyntaxError) as error:
        raise UserError(
            f"an annotation of {function.__name__} cannot be read ({error}): import what it names, "
            "or leave it out"
        ) from None
    options = []
    for name, p in signature(function).parameters.items():
        if p.kind in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD):
            continue
        kind, help = hints.get(name, type(p.default)), parameter_help(function).get(name, "")
        options.append(Option(name, kind, defaults.get(name, p.default), help))
    return options


class _Repeated(argparse.Action):
    """Collects the values of a repeated flag, which replace the default."""

    def __call__(self, parser: Any, namespace: Any, values: Any, flag: str | None = None) -> None:
        """Add a value, or each of a tuple."""
        earlier = getattr(namespace, self.dest)
        earlier = () if earlier is self.default else earlier or ()
        added = values if isinstance(values, tuple) else (values,)
        setattr(namespace, self.dest, None if values is None else (*earlier, *added))


LITERAL = re.compile(r"^( |python |fabric |fl-lightning )", re.MULTILINE)
"""A line of a paragraph that keeps its lines. Ruff unindents a docstring's block of commands."""


class _Formatter(argparse.HelpFormatter):
    """Wraps the paragraphs of a text, but for those with indented lines or commands."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n\n".join(
            part if LITERAL.search(part) else fill(part, width, break_on_hyphens=False)
            for part in text.strip("\n").split("\n\n")
        )


class ArgumentParser(argparse.ArgumentParser):
    """Reports an error in one sentence, and takes no abbreviated flags."""

    def __init__(self, prog: str | None = None, **kwargs: Any):
        super().__init__(prog, allow_abbrev=False, formatter_class=_Formatter, **kwargs)

    def error(self, message: str) -> NoReturn:
        """Leave with the sentence and exit code 2."""
        exit_with_error(message)


def add_options(group: Any, options: Sequence[Option], config: Mapping[str, Any] = {}) -> None:
    """Add options to a parser, or to a group of one; `config` holds other defaults by name."""
    for option in options:
        where = "the configuration's" if option.name in config else "the default of"
        default = config.get(option.name, option.default)
        if option.name in config or default not in (None, NEEDED):
            try:  # as it would be read, since config.yaml holds it: 2 epochs are 2.0
                option = replace(option, default=convert(option.kind, default))
            except ValueError as error:
                raise UserError(f"{where} {option.name}: {error}") from None
        switch: dict[str, Any] = {"nargs": "?", "const": True} if option.kind is bool else {}
        _add(group, option, default=option.default, **switch)


def check_figures(files: Sequence[Path]) -> None:
    """Raise a UserError unless figures can be written to these files; call it before long work."""
    for file in files:
        if file.suffix not in (".png", ".pdf", ".svg") or not file.parent.is_dir():
            raise UserError(f"{file} is no .png, .pdf or .svg in an existing folder")


def add_parameters(parser: argparse.ArgumentParser, options: Sequence[Option]) -> None:
    """Add the options of a command to its parser.

    A Sequence without a default becomes the positional argument. Flags of other Sequences and of
    tuples can be repeated.
    """
    for option in options:
        if option.default is NEEDED:
            (kind,) = get_args(option.kind)
            parser.add_argument(option.name, nargs="+", type=partial(_read, kind), help=option.help)
        elif option.kind is bool:
            parser.add_argument(flag_of(option.name), action="store_true", help=option.help)
        else:
            _add(parser, option, default=option.default)


def _add(group: Any, option: Option, **further: Any) -> None:
    if get_origin(option.kind) is Sequence:
        (kind,), help = get_args(option.kind), f"{option.help} It can be repeated."
        option, further = replace(option, kind=kind, help=help), {**further, "action": _Repeated}
    elif any(... in get_args(kind) for kind in (option.kind, *get_args(option.kind))):
        further["action"] = _Repeated  # a tuple of any length
    group.add_argument(
        flag_of(option.name),
        dest=option.name,
        type=partial(_read, option.kind),
        metavar=metavar(option.kind),
        help=f"{option.help} (default: {shown(option.default)})".replace("%", "%%"),
        **further,
    )


def _read(kind: Any, text: str) -> Any:
    try:
        return convert(kind, text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def flag_of(option: str) -> str:
    """The flag of an option: --algorithm.first-participation of algorithm.first_participation."""
    return f"--{option.replace('_', '-')}"


def given(argv: Sequence[str]) -> set[str]:
    """The options that a command line names, as YAML spells them."""
    return {flag[2:].partition("=")[0].replace("-", "_") for flag in argv if flag.startswith("--")}


def last_value(argv: Sequence[str], flag: str, bare: str | None = None) -> str | None:
    """The last value of a flag in a command line; `bare` for a flag without one."""
    values = values_of(argv, flag, bare)
    return values[-1] if values else None


def values_of(argv: Sequence[str], flag: str, bare: str | None = None) -> list[str]:
    """All values of a flag in a command line, in order."""
    values: list[str | None] = []
    for argument, following in pairwise([*argv, "--"]):
        name, equals, value = argument.partition("=")
        if name == flag:
            values.append(value if equals else bare if following.startswith("--") else following)
    return [v for v in values if v is not None]


def normalized(argv: Sequence[str]) -> list[str]:
    """A command line whose flags are spelled with hyphens."""
    return [
        flag_of(name[2:]) + equals + value if name.startswith("--") else name + equals + value
        for name, equals, value in (argument.partition("=") for argument in argv)
    ]


def with_source(argv: Sequence[str]) -> list[str]:
    """`argv`, and behind it what `--data file.csv` stands for: the file itself names the source."""
    file = last_value(argv, "--data") or ""
    is_table = file.lower().endswith(".csv")
    return [*argv, *(["--data", "table", "--data.file", file] if is_table else [])]


def with_resumed_options(argv: Sequence[str]) -> list[str]:
    """`argv`, and before it the options of the run that it resumes."""
    flags = normalized(argv)
    folder, resume = last_value(flags, "--run-dir"), last_value(flags, "--resume", bare="true")
    config = Path(expanduser(folder or "")) / "config.yaml"
    begun = folder and (resume or "").lower() == "true" and config.is_file()
    return [f"--config={config}", *argv] if begun else [*argv]
