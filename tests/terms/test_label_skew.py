"""Losses against label skew, against numbers worked out by hand on tiny batches."""

from math import exp, log
from typing import Any

import pytest
import torch
from oracles import loss_of, view
from problems import trained, vec
from torch import Tensor, nn

from fl_lightning import Algorithm, Term
from fl_lightning.errors import TermError
from fl_lightning.terms import Decorrelation, Distill, LogitCalibration, RestrictedSoftmax


def exactly(value: float) -> Any:
    return pytest.approx(value, abs=1e-7)


def decorrelation(z: Tensor, **options: Any) -> float:
    b = view(loss=vec(10)[0], activations={"head": (z, None)})
    return loss_of(Decorrelation(**options), view(layout=view(head="head")), b) - 10


Z = torch.tensor([[1, 2, 0], [2, 0, 1], [3, 1, 5]], dtype=torch.float64)
"""Columns that correlate by -1/2 (0 and 1), 5/sqrt(28) (0 and 2) and -1/sqrt(28) (1 and 2)."""
SQUARES = 1 / 4 + 25 / 28 + 1 / 28


def test_the_squares_of_correlations_are_averaged_over_all_pairs() -> None:
    for z in (Z, 5 + 2 * Z):
        assert decorrelation(z, products="mean", beta=0.3) == exactly(0.3 * 2 * SQUARES / 9)


def test_sums_over_the_batch_are_larger() -> None:
    """By 2^2 / 3, and pairs of different features alone are counted."""
    assert decorrelation(Z, beta=0.3) == exactly(0.3 * 4 / 3 * 2 * SQUARES / 6)


@pytest.mark.parametrize("products", ["mean", "sum"])
def test_one_sample_and_one_feature_have_no_correlations(products: str) -> None:
    assert decorrelation(Z[:1], products=products) == 0
    assert decorrelation(Z[:, :1], products=products) == exactly(0)
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


def test_scores_of_missing_classes_are_multiplied() -> None:
    assert classified(RestrictedSoftmax(0.5), 5, 0, 1) == exactly(log((4 + 3 + 1) / 4))
    assert classified(RestrictedSoftmax(0.0), 5, 0, 1) == exactly(log((4 + 1 + 1) / 4))


def test_scores_of_rare_classes_are_multiplied_by_how_often_they_occur() -> None:
    """Class 1 has a quarter of the samples of the largest: 0.2 + 0.8 / 4."""
    restricted = RestrictedSoftmax(0.2, "rare")
    assert classified(restricted, 4, 1, 0) == exactly(log((4 + 9**0.4 + 1) / 4))


def test_scores_lose_margins_by_the_class_counts() -> None:
    """Of 16 samples 1/2, of 1 sample 1, of 81 samples 1/3."""
    margins = log((4 * exp(-1) + 9 * exp(-2) + exp(-2 / 3)) / (4 * exp(-1)))
    assert classified(LogitCalibration(2.0), 16, 1, 81) == exactly(margins)
    assert classified(LogitCalibration(2.0), 16, 0, 16) == exactly(log(5 / 4))


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
        trained(Algorithm(*terms)).w for terms in [(term, Distill()), (Distill(), term), (term,)]
    )
    torch.testing.assert_close(inside, outside, rtol=0, atol=1e-10)
    assert (inside - alone).abs().max() > 1e-6
