"""The options of docs/paper-and-code.md exist, and the bold ones are the defaults."""

import re
from ast import literal_eval
from collections.abc import Iterator
from dataclasses import fields
from inspect import signature
from pathlib import Path

import pytest

import fl_lightning as fl
from fl_lightning.runs.options import Options

PAGE = Path(__file__).parents[1] / "docs" / "paper-and-code.md"


def rows() -> Iterator[tuple[list[str], str, str]]:
    for line in PAGE.read_text().splitlines():
        if line.startswith("| ["):
            methods, _, _, paper, code = line.strip("| ").split(" | ")
            yield re.findall(r"\[(\w+)\]", methods), paper, code


@pytest.mark.parametrize(("methods", "paper", "code"), [*rows()])
def test_options_exist_and_bold_ones_are_defaults(
    methods: list[str], paper: str, code: str
) -> None:
    for name in methods:
        make = getattr(fl.algorithms, name)
        for side in paper, code:
            options = re.findall(r"(\**)`(\w+)=([^`]+)`", side)
            make(**{option: literal_eval(value) for _, option, value in options})
            general = re.findall(r"`--(\w+) ", side)
            assert options or {*general} & {f.name for f in fields(Options)}
            for bold, option, value in options:
                default = signature(make).parameters[option].default
                assert bool(bold) == (literal_eval(value) == default), (name, option)
