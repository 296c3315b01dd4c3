"""A command line, looked at before it is parsed."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from fl_lightning.runs.folder import RunFolder


def given(argv: Sequence[str]) -> set[str]:
    """The options that a command line names, as YAML spells them."""
    return {flag[2:].partition("=")[0].replace("-", "_") for flag in argv if flag.startswith("--")}


def last_value(argv: Sequence[str], flag: str, alone: str | None = None) -> str | None:
    """The last value of a flag in a command line; `alone` where it stands without one."""
    values = values_of(argv, flag, alone)
    return values[-1] if values else None


def values_of(argv: Sequence[str], flag: str, alone: str | None = None) -> list[str]:
    """All values of a flag in a command line, in order."""
    values: list[str | None] = []
    for argument, following in pairwise([*argv, "--"]):
        if argument == flag:
            values.append(alone if following.startswith("--") else following)
        elif argument.startswith(flag + "="):
            values.append(argument.split("=", 1)[1])
    return [v for v in values if v is not None]


def normalised(argv: Sequence[str]) -> list[str]:
    """A command line whose flags are spelt with hyphens."""
    parted = [argument.partition("=") for argument in argv]
    return [
        name.replace("_", "-") + equals + value if name.startswith("--") else name + equals + value
        for name, equals, value in parted
    ]


def with_resumed_options(argv: Sequence[str]) -> list[str]:
    """`argv`; a resumed run takes its options from its folder, before the flags."""
    flags = normalised(argv)
    peek = last_value(flags, "--run-dir")
    resumed = last_value(flags, "--resume", alone="true")
    if (
        peek
        and (resumed or "").lower() == "true"
        and (config := RunFolder(Path(peek)).config).is_file()
    ):
        return ["--config", str(config), *argv]
    return list(argv)
