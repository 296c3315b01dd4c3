"""Every option and coefficient that is a number, with one that it cannot be: one sentence."""

import re
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from inspect import signature
from typing import Any, get_args, get_type_hints

import pytest

from fl_lightning import terms
from fl_lightning.algorithms import modifiers
from fl_lightning.algorithms.registry import ALGORITHMS, functions
from fl_lightning.callbacks import CALLBACKS
from fl_lightning.core.constraints import (
    BelowOneFloat,
    FiniteFloat,
    PositiveFloat,
    PositiveInt,
    metadata,
)
from fl_lightning.data import CropFlip, schemes
from fl_lightning.runs.options import Options

ANY_SIGN = {"threshold", "gate_offset", "b", "stopping_threshold"}
FILLED_IN = {"y", "clients", "seed", "domains"}
"""Parameters of a partition scheme that the recipe fills in."""

NEEDED = {"label_prior": " --partition.alpha=1", "fedsol_ablation.beta": " --algorithm.row=a5"}
"""Further options that a coefficient needs to have an effect."""

CHOICES: dict[str, dict[str, Callable[..., Any]]] = {
    "algorithm": dict(ALGORITHMS),
    "partition": functions(schemes),
    "augment": {"crop_flip": CropFlip},
    **modifiers.PARTS,
}


def numbers(hints: dict[str, Any]) -> Iterator[tuple[str, type]]:
    """The options that are a number, or none."""
    for name, hint in hints.items():
        for kind in (int, float):
            if hint is kind or kind in get_args(hint) == (kind, type(None)):
                yield name, kind


def of_options() -> Iterator[str]:
    for name, kind in numbers(get_type_hints(Options)):
        bad = ["-1", "nan", "inf"] if kind is float else ["-1", "0", "1.5", "nan"]
        for value in bad if name != "seed" else bad[:1]:
            yield f"--{name.replace('_', '-')}={value}"


def of_choices() -> Iterator[str]:
    for kind, offered in CHOICES.items():
        for choice, function in offered.items():
            for name, _ in numbers(get_type_hints(function)):
                if name in signature(function).parameters and not (
                    kind == "partition" and name in FILLED_IN
                ):
                    needed = NEEDED.get(choice, "") + NEEDED.get(f"{choice}.{name}", "")
                    value = "nan" if name in ANY_SIGN else "-1"
                    yield f"--{kind}={choice}{needed} --{kind}.{name}={value}"


def of_callbacks() -> Iterator[str]:
    for callback, function in CALLBACKS.items():
        for name, _ in numbers(get_type_hints(function.__init__)):
            yield f"--callback={callback}:{name}={'nan' if name in ANY_SIGN else '-1'}"


MORE = (
    "--participation 0; --participation 2; --lr 0; --momentum 1; --clip-norm 0; --server-lr 0; "
    "--finetune-lr 0; --finetune-epochs 1,-1; --client-state-memory 0GiB; --model.hidden 0; "
    "--algorithm fedcm --algorithm.alpha 2; --algorithm fedavgm --algorithm.beta 1; "
    "--algorithm fedadam --algorithm.tau 0; --algorithm fedntd --algorithm.tau 0; "
    "--algorithm knn_per --algorithm.mix 1.5; --algorithm knn_per --algorithm.capacity 0; "
    "--augment crop_flip --augment.crop 2; --partition shards --partition.per-client 1000; "
    "--partition pathological --partition.classes 11; --partition label_prior --partition.alpha 0"
)


@pytest.mark.parametrize("argv", [*of_options(), *of_choices(), *of_callbacks(), *MORE.split("; ")])
def test_a_number_out_of_range_is_refused_and_shown(argv, refused):
    said = refused(*argv.split())
    value = argv.split()[-1].split("=")[-1].split(",")[-1]
    name = re.findall(r"--(?:\w+\.)?([\w-]+)", argv)[-1].replace("-", "_")
    assert value in said or str(float(value)) in said or name in said


OWN = """
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


@pytest.mark.parametrize("option", ["mu", "rho"])
def test_ranges_hold_in_a_user_defined_term_whose_annotations_are_text(option, tmp_path, refused):
    """Also next to an annotation that cannot be evaluated."""
    (tmp_path / "mine.py").write_text(OWN)
    argv = "--algorithm", f"{tmp_path / 'mine.py'}:mine", f"--algorithm.{option}=-1"
    assert f"{option} of Push is" in refused(*argv)


def test_every_number_of_a_term_has_a_range():
    plain = [
        f"{name}.{field.name}"
        for name, term in vars(terms).items()
        for field in (fields(term) if is_dataclass(term) else ())
        if field.type in (int, float, int | None, float | None)
    ]
    assert plain == []


@pytest.mark.parametrize(
    ("kind", "shown"),
    [
        (PositiveInt, "int >= 1"),
        (PositiveFloat, "float > 0"),
        (BelowOneFloat, "0 <= float < 1"),
        (FiniteFloat, "-inf < float < inf"),
    ],
)
def test_signatures_show_ranges_as_inequalities(kind, shown):
    [allowed] = metadata(kind)
    assert repr(allowed) == shown


def test_the_signature_of_the_options_shows_no_address():
    assert " at 0x" not in str(signature(Options))
