"""Losses against label skew: what has none, what is refused, and what others add."""

from math import log
from typing import Any

import pytest
import torch
from oracles import loss_of, view
from problems import trained, vec
from torch import Tensor, nn

from fl_lightning import Algorithm, Term
from fl_lightning.errors import TermError
from fl_lightning.terms import Decorrelation, Distill, LogitCalibration, RestrictedSoftmax


def decorrelation(z: Tensor, **options: Any) -> float:
    b = view(loss=vec(10)[0], activations={"head": (z, None)})
    return loss_of(Decorrelation(**options), view(layout=view(head="head")), b) - 10


@pytest.mark.parametrize("products", ["mean", "sum"])
def test_one_sample_and_one_feature_have_no_correlations(products: str) -> None:
    z = torch.tensor([[1, 2, 0], [2, 0, 1], [3, 1, 5]], dtype=torch.float64)
    assert decorrelation(z[:1], products=products) == 0
    assert decorrelation(z[:, :1], products=products) == pytest.approx(0, abs=1e-7)
    assert decorrelation(torch.ones(4, 3), products=products) == 0  # constant features


def test_correlations_are_in_float32_under_autocast() -> None:
    z = torch.randn(8, 5, dtype=torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        rounded = decorrelation(z)
    assert rounded == pytest.approx(decorrelation(z.double()), rel=1e-5)


def test_features_of_tokens_are_refused() -> None:
    with pytest.raises(TermError, match=r"\(2, 7, 3\) enters the head"):
        decorrelation(torch.ones(2, 7, 3))


OUT = vec(log(4), log(9), 0)[None]
"""Scores of one sample, of class 0."""


def classified(term: Term, *counts: float, out: Any = OUT, y: Any = None) -> float:
    """What the loss is where the task's own is 10 besides the cross entropy."""
    own = nn.functional.cross_entropy(OUT, torch.tensor([0]))
    b = view(loss=10 + own, out=out, y=torch.tensor([0]) if y is None else y)
    return loss_of(term, view(labels=vec(*counts)), b) - 10


@pytest.mark.parametrize("term", [RestrictedSoftmax(0.25), LogitCalibration()])
def test_classes_that_the_data_lack_are_missing(term: Term) -> None:
    assert classified(term, 3, 4) == classified(term, 3, 4, 0)


@pytest.mark.parametrize("term", [RestrictedSoftmax(), LogitCalibration()])
@pytest.mark.parametrize(
    ("counts", "out", "y", "words"),
    [
        ((24,), OUT, torch.tensor([0]), "no classes"),
        ((24,), torch.ones(2, 7, 5), torch.zeros(2, 7, dtype=torch.int64), "no classes"),
        ((4, 5), torch.ones(2, 1), torch.zeros(2, dtype=torch.int64), "scores of classes"),
        ((4, 5), torch.ones(2, 2), torch.zeros(2), "targets are no classes"),
    ],
    ids=["no classes", "tokens", "one number", "numbers"],
)
def test_what_has_no_classes_is_refused(
    term: Term, counts: tuple[float, ...], out: Tensor, y: Tensor, words: str
) -> None:
    with pytest.raises(TermError, match=words):
        classified(term, *counts, out=out, y=y)


@pytest.mark.parametrize("term", [RestrictedSoftmax(), LogitCalibration()])
def test_what_other_terms_add_to_the_loss_stays(term: Term) -> None:
    """In either order."""
    inside, outside, alone = (
        trained(Algorithm(*terms), rounds=1).w
        for terms in [(term, Distill()), (Distill(), term), (term,)]
    )
    torch.testing.assert_close(inside, outside, rtol=0, atol=1e-10)
    assert (inside - alone).abs().max() > 1e-6
