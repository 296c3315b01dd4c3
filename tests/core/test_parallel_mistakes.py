"""Terms that cannot run for several clients in parallel or be compiled, and their messages."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from executors import STACKED, TRACED, assert_agree
from mistakes import in_gradient, mistaken
from problems import federation, trained
from torch import Tensor

from fl_lightning import Algorithm, SequentialExecutor, Term, TermError
from fl_lightning.core.oracle import Oracle
from fl_lightning.terms import SAM


def a_sum_of_squares(self: Term, oracle: Oracle, w: Tensor, v: Any) -> Tensor:
    total = torch.zeros((), dtype=w.dtype)
    for part in v.layout.split(w):
        total += part.square().sum()
    return oracle(w) * total


def a_few_places(self: Term, oracle: Oracle, w: Tensor, v: Any) -> Tensor:
    direction = torch.zeros(len(w), dtype=w.dtype)
    direction[:3] = oracle(w)[:3]
    return direction


def places_of_a_shared_vector(self: Term, oracle: Oracle, w: Tensor, v: Any) -> Tensor:
    direction = torch.zeros_like(v.c)  # one for all clients of a run
    direction[:3] = oracle(w)[:3]
    return direction


STACKED_ONLY: dict[str, tuple[Callable[..., Any], str]] = {
    "if on a tensor": (lambda self, oracle, w, v: oracle(w) if w.sum() > 0 else w, r"torch\.where"),
    "int() of the steps": (lambda self, oracle, w, v: int(v.steps) * oracle(w), r"torch\.where"),
    "boolean indexing": (in_gradient(lambda g, v: g * g[g > 0].sum()), r"torch\.where"),
    "random numbers": (in_gradient(lambda g, v: g + torch.randn_like(g)), "draw by v.uniform"),
    "numpy's random numbers": (
        in_gradient(lambda g, v: g * (1 + 0.1 * np.random.rand())),  # noqa: NPY002
        "draw by v.uniform",
    ),
    "Python's draws": (in_gradient(lambda g, v: g * (random.random() < 0.5)), "draw by v.uniform"),
    "a sum in place": (a_sum_of_squares, r"as torch\.zeros_like\(w\)"),
    "places of a new vector": (a_few_places, r"as torch\.zeros_like\(w\)"),
    "places of a shared vector": (places_of_a_shared_vector, r"as torch\.zeros_like\(w\)"),
    "numpy": (
        in_gradient(lambda g, v: torch.from_numpy(np.sign(g.numpy()))),
        "torch, not of numpy",
    ),
}


@pytest.mark.parametrize("mistake", STACKED_ONLY)
def test_what_cannot_run_for_several_clients_in_parallel_is_named(mistake):
    code, fix = STACKED_ONLY[mistake]
    algorithm = Algorithm(SAM(), mistaken("gradient", code))
    said = rf"Mistaken\.gradient cannot run .* {fix}.* sequential executor"
    with pytest.raises(TermError, match=said) as caught:
        federation(algorithm, executor=STACKED)
    assert "bug report" not in str(caught.value)
    trained(algorithm)


@pytest.mark.usefixtures("traces")
def test_what_cannot_be_compiled_is_named_with_what_can():
    early = mistaken("gradient", in_gradient(lambda g, v: g if v.round < 1 else 0.5 * g))
    fixed = in_gradient(lambda g, v: (v.round < 1) * g + (v.round >= 1) * 0.5 * g)
    with pytest.raises(TermError, match=r"Mistaken\.gradient cannot .* \(v\.round < 3\) \* a \+"):
        federation(Algorithm(early), executor=TRACED)
    for executor in (SequentialExecutor, TRACED):
        run = trained(Algorithm(mistaken("gradient", fixed)), executor=executor)
        assert_agree(trained(Algorithm(early)), run)


def test_item_in_a_report_is_named_too():
    report = mistaken("report", lambda self, w, v: w * v.lr_sum.item())
    with pytest.raises(TermError, match=r"Mistaken\.report cannot run .*\.item\(\)"):
        federation(Algorithm(report), executor=STACKED)
