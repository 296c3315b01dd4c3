"""A command line before it is parsed."""

from collections.abc import Sequence
from itertools import pairwise
from os.path import expanduser
from pathlib import Path


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
    return [*argv, *(["--data", "table", "--data.file", file] if file.endswith(".csv") else [])]


def with_resumed_options(argv: Sequence[str]) -> list[str]:
    """`argv`, and before it the options of the run that it resumes."""
    flags = normalized(argv)
    folder, resume = last_value(flags, "--run-dir"), last_value(flags, "--resume", bare="true")
    config = Path(expanduser(folder or "")) / "config.yaml"
    begun = folder and (resume or "").lower() == "true" and config.is_file()
    return [f"--config={config}", *argv] if begun else [*argv]
