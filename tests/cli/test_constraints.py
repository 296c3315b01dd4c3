"""Every option and every coefficient that is a number, with one that it cannot be: a sentence that shows it."""

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from inspect import signature
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
from refusals import refused

from fl_lightning import terms
from fl_lightning.algorithms import modifiers
from fl_lightning.algorithms.registry import ALGORITHMS
from fl_lightning.cli.choices import functions
from fl_lightning.cli.options import Options
from fl_lightning.data import CropFlip, schemes

ANY_SIGN = {"threshold", "gate_offset", "b"}
GIVEN = {"y", "clients", "seed", "domains"}
"""What a partition scheme is given by the recipe."""

NEEDED = {"class_priors": ["--partition.alpha=1"]}


def numbers(hints: dict[str, Any]) -> Iterator[tuple[str, type]]:
    """Those of the options that are a number, or none."""
    for name, hint in hints.items():
        yield from (
            (name, kind)
            for kind in (int, float)
            if hint is kind or kind in get_args(hint) == (kind, type(None))
        )


def of_options() -> Iterator[list[str]]:
    for name, kind in numbers(get_type_hints(Options)):
        absurd = (
            ["-1", "nan", "inf"] if kind is float else ["-1", "0", "1.5", "nan", "1" + "0" * 20]
        )
        for value in absurd if name != "seed" else absurd[:1]:
            yield [f"--{name.replace('_', '-')}={value}"]


def of_parts() -> Iterator[list[str]]:
    parts: dict[str, dict[str, Callable[..., Any]]] = {
        "algorithm": dict(ALGORITHMS),
        "partition": functions(schemes),
        "augment": {"crop_flip": CropFlip},
        **{name: functions(module) for name, module in modifiers.PARTS.items()},
    }
    for part, choices in parts.items():
        for choice, function in choices.items():
            hints = {
                name: hint
                for name, hint in get_type_hints(function).items()
                if name in signature(function).parameters
            }
            for name, _ in numbers(hints):
                for value in ["nan", "-1"] if name not in ANY_SIGN else ["nan"]:
                    if not (part == "partition" and name in GIVEN):
                        yield [
                            f"--{part}={choice}",
                            *NEEDED.get(choice, []),
                            f"--{part}.{name.replace('_', '-')}={value}",
                        ]


MORE = [
    ["--participation", "0"],
    ["--participation", "2"],
    ["--local-epochs", "1e9"],
    ["--lr", "0"],
    ["--momentum", "1"],
    ["--clip-norm", "0"],
    ["--finetune-lr", "0"],
    ["--finetune-epochs", "0"],
    ["--finetune-epochs", "1,-1"],
    ["--client-state-memory", "0GiB"],
    ["--algorithm", "fedcm", "--algorithm.alpha", "2"],
    ["--algorithm", "fedavgm", "--algorithm.beta", "1"],
    ["--algorithm", "fedadam", "--algorithm.tau", "0"],
    ["--algorithm", "fedntd", "--algorithm.tau", "0"],
    ["--algorithm", "fedavg", "--algorithm.server-lr", "0"],
    ["--algorithm", "knn_per", "--algorithm.mix", "1.5"],
    ["--algorithm", "knn_per", "--algorithm.capacity", "0"],
    ["--augment", "crop_flip", "--augment.crop", "2"],
    ["--model.hidden", "0"],
    ["--partition", "shards", "--partition.per-client", "1000"],
    ["--partition", "pathological", "--partition.classes", "11"],
    ["--partition", "class_priors", "--partition.alpha", "0"],
]


@pytest.mark.parametrize("argv", [*of_options(), *of_parts(), *MORE], ids=" ".join)
def test_an_absurd_number_is_refused_and_shown(
    argv: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said, value = refused(capsys, tmp_path / "run", *argv), argv[-1].split("=")[-1].split(",")[-1]
    assert value in said or str(float(value)) in said


CLIENT_FACTS = """
from __future__ import annotations
from dataclasses import dataclass
from typing import TYPE_CHECKING
from fl_lightning import Algorithm, Term
from fl_lightning.core.constraints import NonNegativeFloat, PositiveFloat
if TYPE_CHECKING:
    from nowhere import Unknown

@dataclass(frozen=True)
class Pull(Term):
    mu: NonNegativeFloat = 0.1
    odd: Unknown = None
    rho: PositiveFloat | None = None

@dataclass(frozen=True)
class Push(Pull):
    pass

def mine(mu: float = 0.1, rho: float | None = None) -> Algorithm:
    return Algorithm(Push(mu, None, rho))
"""


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("mu", "mu of Push is a finite number of at least 0, not -1.0"),
        ("rho", "rho of Push is a positive number"),
    ],
)
def test_ranges_hold_in_an_own_file_whose_annotations_are_text(
    option: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also beside one that cannot be evaluated."""
    (tmp_path / "mine.py").write_text(CLIENT_FACTS)
    argv = "--algorithm", f"{tmp_path / 'mine.py'}:mine", f"--algorithm.{option}=-1"
    assert said in refused(capsys, tmp_path / "run", *argv)


def test_no_number_of_a_term_is_without_a_range() -> None:
    plain = [
        f"{name}.{field.name}"
        for name, term in vars(terms).items()
        for field in (fields(term) if is_dataclass(term) else ())
        if field.type in (int, float, int | None, float | None)
    ]
    assert plain == []
